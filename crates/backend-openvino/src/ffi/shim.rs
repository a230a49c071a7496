//! The shim: functions of ours that add what the C interface lacks.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use super::{Core, Failure, Model, Request, text_of, with_path};

/// Functions of the shim.
type OnObject = unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> c_int;
/// The same with numbers and how many there are.
type KeepColumns = unsafe extern "C" fn(*mut c_void, *const u64, usize, *mut c_char, usize) -> c_int;

/// The small library of ours that adds what the C interface lacks.
pub struct Shim {
    page_attention: OnObject,
    read_attention: OnObject,
    keep_columns: KeepColumns,
}

impl Shim {
    /// Opens it; OpenVINO's own library is loaded and has this version. One for another version is refused.
    pub fn open(path: &Path, version: &str) -> Result<Self, Failure> {
        let shown = path.display();
        // SAFETY: opening runs the library's initialisers; it is the shim that lies beside the program or OpenVINO, or
        // that the user names.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| with_path(path, &error))?;
        let missing = |_| format!("{shown} lacks a function; build it again");
        // SAFETY: the types are those of the functions in shim.cpp, and the library is never closed.
        unsafe {
            let built_for = *library
                .get::<unsafe extern "C" fn() -> *const c_char>(b"puna_openvino_version")
                .map_err(missing)?;
            let built_for = text_of(built_for());
            if built_for != version {
                return Err(format!("{shown} is for OpenVINO {built_for}, not {version}; build it again"));
            }
            let page_attention = *library.get::<OnObject>(b"puna_page_attention").map_err(missing)?;
            let read_attention = *library.get::<OnObject>(b"puna_read_attention").map_err(missing)?;
            let keep_columns = *library.get::<KeepColumns>(b"puna_keep_columns").map_err(missing)?;
            // Objects that its functions made live in OpenVINO's hands, so its code stays until the process ends.
            std::mem::forget(library);
            Ok(Self { page_attention, read_attention, keep_columns })
        }
    }

    /// Puts paged attention in the place of the layers of a model that stand for it.
    pub(super) fn page_attention(&self, model: &mut Model) -> Result<(), Failure> {
        let object = model.0.pointer.cast();
        // SAFETY: the object is a model, as the function expects, which nobody else uses meanwhile.
        with_message(|message, length| unsafe { (self.page_attention)(object, message, length) })
    }

    /// Has models that this root object imports read with their paged attention.
    pub(super) fn read_attention(&self, core: &Core) -> Result<(), Failure> {
        let object = core.0.pointer.cast();
        // SAFETY: the object is a root object, as the function expects.
        with_message(|message, length| unsafe { (self.read_attention)(object, message, length) })
    }

    /// Leaves these rows in the variables of a request, in this order; each is there.
    pub(super) fn keep_columns(&self, request: &mut Request, columns: &[u64]) -> Result<(), Failure> {
        let object = request.0.pointer.cast();
        // SAFETY: the object is a request, which nobody else uses meanwhile; the numbers are as many as said.
        with_message(|message, length| unsafe {
            (self.keep_columns)(object, columns.as_ptr(), columns.len(), message, length)
        })
    }
}

/// Calls a function of the shim with room for a message.
fn with_message(function: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), Failure> {
    let mut message: [c_char; 1024] = [0; 1024];
    match function(message.as_mut_ptr(), message.len()) {
        0 => Ok(()),
        // SAFETY: the message is as long as said, and functions of the shim end it with zero.
        _ => Err(unsafe { text_of(message.as_ptr()) }),
    }
}
