//! NVIDIA's library for exchanges between cards, found when several cards divide matrices for the first time. Nothing of it is needed
//! to build this, and without it cards exchange by copies.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::driver::{DevicePointer, Handle};

/// What every function returns; 0 is success.
type Status = c_int;
/// A card's place among those that exchange.
pub type Communicator = *mut c_void;

/// Bytes, as the library numbers types of data.
const BYTES: c_int = 0;

macro_rules! nccl {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions.
        pub struct Nccl {
            $($name: unsafe extern "C" fn($($argument),*) -> Status,)*
            message: unsafe extern "C" fn(Status) -> *const c_char,
        }

        impl Nccl {
            fn find(library: *mut c_void) -> Option<Self> {
                let symbol = |name: &str| {
                    let name = CString::new(name).unwrap_or_default();
                    // SAFETY: the library is open and stays so; the name ends with a zero.
                    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                    (!found.is_null()).then_some(found)
                };
                Some(Self {
                    $($name: {
                        let found = symbol($symbol)?;
                        // SAFETY: the library's function of this name has this type.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>(found) }
                    },)*
                    message: {
                        let found = symbol("ncclGetErrorString")?;
                        // SAFETY: the same.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Status) -> *const c_char>(found) }
                    },
                })
            }
        }
    };
}

nccl! {
    connect = "ncclCommInitAll"(*mut Communicator, c_int, *const c_int);
    disconnect = "ncclCommDestroy"(Communicator);
    begin = "ncclGroupStart"();
    end = "ncclGroupEnd"();
    gather = "ncclAllGather"(*const c_void, *mut c_void, usize, c_int, Communicator, Handle);
    broadcast = "ncclBroadcast"(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, Handle);
}

impl Nccl {
    /// The library, if it is installed.
    pub fn get() -> Option<&'static Self> {
        static NCCL: OnceLock<Option<Nccl>> = OnceLock::new();
        NCCL.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        let open = |name: &CStr| {
            // SAFETY: the name ends with a zero; loading the library has no preconditions.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!library.is_null()).then_some(library)
        };
        Self::find([c"libnccl.so.2", c"libnccl.so"].into_iter().find_map(open)?)
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function gives a string of the library for every number.
        let message = unsafe { CStr::from_ptr((self.message)(status)) };
        Err(message.to_string_lossy().into_owned())
    }

    /// Connects cards, which are not the same, in this order.
    pub fn connect(&self, cards: &[c_int]) -> Result<Vec<Communicator>, String> {
        let mut communicators = vec![std::ptr::null_mut(); cards.len()];
        // SAFETY: there is room for as many as there are cards.
        let status =
            unsafe { (self.connect)(communicators.as_mut_ptr(), cards.len() as c_int, cards.as_ptr()) };
        self.check(status).map(|()| communicators)
    }

    /// Gives one up.
    pub fn disconnect(&self, communicator: Communicator) {
        // SAFETY: it was made by `connect` and is used no more; a failure leaves nothing to do.
        unsafe { (self.disconnect)(communicator) };
    }

    /// All calls in `calls` are one exchange.
    pub fn together(&self, calls: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        // SAFETY: the functions have no preconditions; a group that was begun is ended.
        let begun = self.check(unsafe { (self.begin)() });
        let called = begun.and_then(|()| calls());
        // SAFETY: the same.
        let ended = self.check(unsafe { (self.end)() });
        called.and(ended)
    }

    /// On this card, fills blocks of so many bytes each, one for each card, of which the own one is there.
    ///
    /// # Safety
    /// The blocks lie in memory of the card whose communicator and queue these are.
    pub unsafe fn gather(
        &self,
        blocks: DevicePointer,
        own: u64,
        bytes: u64,
        communicator: Communicator,
        queue: Handle,
    ) -> Result<(), String> {
        let from = (blocks + own * bytes) as *const c_void;
        // SAFETY: as the caller says.
        let status =
            unsafe { (self.gather)(from, blocks as *mut c_void, bytes as usize, BYTES, communicator, queue) };
        self.check(status)
    }

    /// On this card, fills a block that another one has, or gives it away.
    ///
    /// # Safety
    /// The block lies in memory of the card whose communicator and queue these are.
    pub unsafe fn broadcast(
        &self,
        block: DevicePointer,
        bytes: u64,
        owner: usize,
        communicator: Communicator,
        queue: Handle,
    ) -> Result<(), String> {
        let (from, to) = (block as *const c_void, block as *mut c_void);
        // SAFETY: as the caller says.
        let status =
            unsafe { (self.broadcast)(from, to, bytes as usize, BYTES, owner as c_int, communicator, queue) };
        self.check(status)
    }
}
