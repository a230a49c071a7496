//! The CUDA driver, found when it is first needed: the functions used here, by name from `libcuda.so.1`.
//!
//! Nothing of CUDA is needed to build this, and a machine without the driver only lacks the device.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// What every function returns; 0 is success.
pub type Status = c_int;
/// A device's number in the driver.
pub type DeviceNumber = c_int;
/// An address in device memory.
pub type DevicePointer = u64;
/// Opaque things of the driver.
pub type Handle = *mut c_void;

/// How a kernel is launched.
#[repr(C)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads.
    pub block: [c_uint; 3],
    /// Bytes of shared memory.
    pub shared: c_uint,
    /// Queue.
    pub stream: Handle,
    /// What else is wished.
    pub attributes: *const LaunchAttribute,
    /// How many wishes.
    pub count: c_uint,
}

/// One wish.
#[repr(C)]
pub struct LaunchAttribute {
    /// Which.
    pub id: c_uint,
    /// Fills up to eight bytes.
    pub padding: c_uint,
    /// Its value, for flags in the first four bytes.
    pub value: [u32; 16],
}

/// A kernel may start before the one that it follows has ended.
pub const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
/// More shared memory than 48 KB.
pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
/// How much of a processor's fast memory is to be shared memory, in percent.
pub const PREFERRED_SHARED_MEMORY_CARVEOUT: c_int = 9;
/// Attributes of devices.
pub const MULTIPROCESSOR_COUNT: c_int = 16;
/// Major and minor number of the compute capability.
pub const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];
/// Bytes of shared memory that a block may ask for.
pub const MAX_SHARED_MEMORY_OPTIN: c_int = 97;
/// No memory left.
pub const OUT_OF_MEMORY: Status = 2;
/// An event that says nothing about time.
pub const WITHOUT_TIME: c_uint = 2;
/// Contexts can reach each other's memory already.
pub const REACHED_ALREADY: Status = 704;

macro_rules! driver {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions.
        #[allow(missing_docs)] // their names are the driver's
        pub struct Driver { $(pub $name: unsafe extern "C" fn($($argument),*) -> Status),* }

        impl Driver {
            fn find(library: *mut c_void) -> Result<Self, String> {
                Ok(Self { $($name: {
                    let name = concat!($symbol, "\0");
                    // SAFETY: the library is open and stays so; the name ends with a zero.
                    let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                    if found.is_null() {
                        return Err(format!("the NVIDIA driver is too old: it lacks {}", $symbol));
                    }
                    // SAFETY: the driver's function of this name has this type.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>(found) }
                }),* })
            }
        }
    };
}

driver! {
    init = "cuInit"(c_uint);
    version = "cuDriverGetVersion"(*mut c_int);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device = "cuDeviceGet"(*mut DeviceNumber, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, DeviceNumber);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, DeviceNumber);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, DeviceNumber);
    context = "cuDevicePrimaryCtxRetain"(*mut Handle, DeviceNumber);
    release_context = "cuDevicePrimaryCtxRelease_v2"(DeviceNumber);
    set_context = "cuCtxSetCurrent"(Handle);
    can_reach = "cuDeviceCanAccessPeer"(*mut c_int, DeviceNumber, DeviceNumber);
    let_reach = "cuCtxEnablePeerAccess"(Handle, c_uint);
    free_memory = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2"(*mut DevicePointer, usize);
    free = "cuMemFree_v2"(DevicePointer);
    clear = "cuMemsetD8Async"(DevicePointer, u8, usize, Handle);
    write = "cuMemcpyHtoDAsync_v2"(DevicePointer, *const c_void, usize, Handle);
    read = "cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePointer, usize, Handle);
    copy = "cuMemcpyDtoDAsync_v2"(DevicePointer, DevicePointer, usize, Handle);
    copy_to_peer = "cuMemcpyPeerAsync"(DevicePointer, Handle, DevicePointer, Handle, usize, Handle);
    allocate_host = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    free_host = "cuMemFreeHost"(*mut c_void);
    create_stream = "cuStreamCreate"(*mut Handle, c_uint);
    destroy_stream = "cuStreamDestroy_v2"(Handle);
    synchronize = "cuStreamSynchronize"(Handle);
    create_event = "cuEventCreate"(*mut Handle, c_uint);
    record_event = "cuEventRecord"(Handle, Handle);
    wait_for_event = "cuStreamWaitEvent"(Handle, Handle, c_uint);
    destroy_event = "cuEventDestroy_v2"(Handle);
    load_module = "cuModuleLoadData"(*mut Handle, *const c_void);
    unload_module = "cuModuleUnload"(Handle);
    function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    set_function_attribute = "cuFuncSetAttribute"(Handle, c_int, c_int);
    launch = "cuLaunchKernelEx"(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    begin_capture = "cuStreamBeginCapture_v2"(Handle, c_int);
    end_capture = "cuStreamEndCapture"(Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
    launch_graph = "cuGraphLaunch"(Handle, Handle);
    destroy_graph = "cuGraphDestroy"(Handle);
    destroy_executable = "cuGraphExecDestroy"(Handle);
    error_name = "cuGetErrorName"(Status, *mut *const c_char);
}

/// CUDA of the embedded kernels: code that the driver compiles itself needs at least this one.
const LEAST_VERSION: c_int = 13000;

impl Driver {
    /// The driver of this machine, ready to use; or in a line why there is none.
    pub fn get() -> Result<&'static Self, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref().map_err(String::clone)
    }

    fn open() -> Result<Self, String> {
        let mut library = std::ptr::null_mut();
        for name in ["libcuda.so.1", "libcuda.so", "/usr/local/nvidia/lib64/libcuda.so.1"] {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: the name ends with a zero; loading the driver's library has no preconditions.
            library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !library.is_null() {
                break;
            }
        }
        if library.is_null() {
            return Err("the NVIDIA driver is not installed (libcuda.so.1 was not found)".into());
        }
        let driver = Self::find(library)?;
        // SAFETY: the flags must be 0.
        let status = unsafe { (driver.init)(0) };
        if status != 0 {
            return Err(format!("the NVIDIA driver does not start: {}", driver.name_of(status)));
        }
        let mut version = 0;
        // SAFETY: the pointer is to an integer of ours.
        unsafe { (driver.version)(&mut version) };
        if version < LEAST_VERSION {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(format!(
                "the NVIDIA driver is too old: it knows CUDA {major}.{minor}, the kernels need {}.{}",
                LEAST_VERSION / 1000,
                LEAST_VERSION % 1000 / 10
            ));
        }
        Ok(driver)
    }

    /// The driver's name for a status.
    pub fn name_of(&self, status: Status) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the pointer is to a pointer of ours, which then names a string of the driver or nothing.
        unsafe {
            if (self.error_name)(status, &mut name) != 0 || name.is_null() {
                return format!("error {status}");
            }
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}
