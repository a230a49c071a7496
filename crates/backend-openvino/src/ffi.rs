//! The C interface of OpenVINO as safe types. The only file of this crate with `unsafe`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use openvino_sys as sys;
use openvino_sys::ov_status_e::OK;

use crate::ir::Element;

/// What the library said about a failure.
pub type Failure = String;

/// Functions that only a library new enough has.
const NEEDED: &[&str] = &[
    "ov_get_openvino_version",
    "ov_core_set_properties",
    "ov_core_compile_model_props",
    "ov_get_last_err_msg",
];

/// Loads the library at this path for the whole process; a second call changes nothing.
pub fn load(path: &Path) -> Result<(), Failure> {
    // SAFETY: opening runs the library's initialisers; it is the file that the user's set-up names as OpenVINO.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| with_path(path, &error))?;
    for name in NEEDED {
        // SAFETY: the symbol is only looked for and never called.
        let found = unsafe { library.get::<*const c_void>(name.as_bytes()) };
        found.map_err(|_| {
            let version = version_of(&library).unwrap_or_default();
            let version = version.split('-').next().filter(|version| !version.is_empty());
            let version = version.unwrap_or("of an unknown version");
            format!("{} is OpenVINO {version}, which is too old: it lacks {name}", path.display())
        })?;
    }
    sys::library::load_from(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // Threads and plugins of the library live until the process ends.
    std::mem::forget(library);
    Ok(())
}

/// What is wrong with a library's file; the system's messages mostly name it.
fn with_path(path: &Path, error: &libloading::Error) -> Failure {
    let (path, message) = (path.display().to_string(), error.to_string());
    if message.contains(&path) { message } else { format!("{path}: {message}") }
}

/// Fills in the version of a library.
type ReadVersion = unsafe extern "C" fn(*mut sys::ov_version_t) -> sys::ov_status_e;
/// Frees what [`ReadVersion`] filled in.
type FreeVersion = unsafe extern "C" fn(*mut sys::ov_version_t);

/// Version of a library that may be of any age, for example `2024.6.0-…`.
fn version_of(library: &libloading::Library) -> Option<String> {
    let mut version = sys::ov_version_t { buildNumber: ptr::null(), description: ptr::null() };
    // SAFETY: both functions have had these types since the interface exists; the text is copied before it is freed.
    unsafe {
        let read = library.get::<ReadVersion>(b"ov_get_openvino_version").ok()?;
        let free = library.get::<FreeVersion>(b"ov_version_free").ok()?;
        if read(&mut version) != OK {
            return None;
        }
        let text = text_of(version.buildNumber);
        free(&mut version);
        Some(text)
    }
}

/// A copy of a text of the library's; empty where there is none.
///
/// # Safety
/// The text ends with zero, or the pointer is null.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Version of the loaded library, for example `2026.4.1-…`; never empty.
pub fn version() -> Result<String, Failure> {
    let mut version = sys::ov_version_t { buildNumber: ptr::null(), description: ptr::null() };
    // SAFETY: the function fills the structure, which is freed after its text is copied.
    let text = unsafe {
        check(sys::ov_get_openvino_version(&mut version))?;
        let text = text_of(version.buildNumber);
        sys::ov_version_free(&mut version);
        text
    };
    // Compiled models and the shim are told apart by it.
    if text.is_empty() { Err("the library does not tell its version".to_owned()) } else { Ok(text) }
}

/// Whether this processor multiplies tiles of bf16 numbers (AMX).
pub fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // Bits of "amx-bf16" and "amx-tile" among the structured extended features.
        const TILES: u32 = 1 << 22 | 1 << 24;
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES == TILES
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

fn check(status: sys::ov_status_e) -> Result<(), Failure> {
    if status == OK {
        return Ok(());
    }
    // SAFETY: the message is a string of the library's or null.
    let message = unsafe {
        let message = sys::ov_get_last_err_msg();
        match message.is_null() {
            true => String::new(),
            false => CStr::from_ptr(message).to_string_lossy().into_owned(),
        }
    };
    let message =
        message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    Err(if message.is_empty() { format!("{status:?}") } else { message })
}

fn text(value: &str) -> Result<CString, Failure> {
    CString::new(value).map_err(|_| format!("{value:?} contains a zero byte"))
}

fn element(element: Element) -> sys::ov_element_type_e {
    use sys::ov_element_type_e as E;
    match element {
        Element::F32 => E::F32,
        Element::F16 => E::F16,
        Element::BF16 => E::BF16,
        Element::I64 => E::I64,
        Element::I32 => E::I32,
        Element::I8 => E::I8,
        Element::U8 => E::U8,
        Element::I4 => E::I4,
        Element::U4 => E::U4,
        Element::Boolean => E::OV_BOOLEAN,
    }
}

/// The element type of the library's, if it is one of ours.
fn of_library(kind: sys::ov_element_type_e) -> Option<Element> {
    const ALL: [Element; 7] =
        [Element::F32, Element::F16, Element::BF16, Element::I64, Element::I32, Element::I8, Element::U8];
    ALL.into_iter().find(|ours| element(*ours) == kind)
}

/// A pointer of the library's that is freed with its owner.
struct Owned<T> {
    pointer: *mut T,
    free: unsafe fn(*mut T),
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the function that `free` belongs to and is given back once.
        unsafe { (self.free)(self.pointer) }
    }
}

// SAFETY: the library's objects may be used from any thread, one at a time, which `&mut` of the wrappers sees to;
// a core is made for use by several.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above; what a shared reference can reach (a core, a compiled model) is made for several threads.
unsafe impl<T> Sync for Owned<T> {}

/// The library's root object.
#[derive(Clone)]
pub struct Core(Arc<Owned<sys::ov_core_t>>);

impl Core {
    /// A new one; the library is loaded.
    pub fn new() -> Result<Self, Failure> {
        let mut pointer = ptr::null_mut();
        // SAFETY: the function stores a new object in the pointer.
        check(unsafe { sys::ov_core_create(&mut pointer) })?;
        Ok(Self(Arc::new(Owned { pointer, free: sys::ov_core_free })))
    }

    /// Names of the devices that its plugins found.
    pub fn devices(&self) -> Result<Vec<String>, Failure> {
        let mut list = sys::ov_available_devices_t { devices: ptr::null_mut(), size: 0 };
        // SAFETY: the function fills the list, whose strings are copied before it is freed.
        unsafe {
            check(sys::ov_core_get_available_devices(self.0.pointer, &mut list))?;
            let names = (0..list.size)
                .map(|index| CStr::from_ptr(*list.devices.add(index)).to_string_lossy().into_owned())
                .collect();
            sys::ov_available_devices_free(&mut list);
            Ok(names)
        }
    }

    /// A property of a device as text.
    pub fn property(&self, device: &str, key: &str) -> Result<String, Failure> {
        let (device, key) = (text(device)?, text(key)?);
        let mut value: *mut c_char = ptr::null_mut();
        // SAFETY: the strings end with zero; the value is copied before it is freed.
        unsafe {
            check(sys::ov_core_get_property(self.0.pointer, device.as_ptr(), key.as_ptr(), &mut value))?;
            let text = CStr::from_ptr(value).to_string_lossy().into_owned();
            sys::ov_free(value);
            Ok(text)
        }
    }

    /// Reads a model from its text and constants, which it keeps as long as it needs them.
    pub fn read(&self, xml: &str, constants: Tensor) -> Result<Model, Failure> {
        let mut pointer = ptr::null_mut();
        // SAFETY: text and length belong together; the library takes a share of the tensor's memory.
        let status = unsafe {
            sys::ov_core_read_model_from_memory_buffer(
                self.0.pointer,
                xml.as_ptr().cast(),
                xml.len(),
                constants.0.pointer,
                &mut pointer,
            )
        };
        check(status)?;
        Ok(Model(Owned { pointer, free: sys::ov_model_free }, constants.1))
    }

    /// Compiles a model for a device.
    pub fn compile(
        &self,
        model: &Model,
        device: &str,
        properties: &[(String, String)],
    ) -> Result<Compiled, Failure> {
        let device = text(device)?;
        let texts = texts(properties)?;
        let pairs = pairs(&texts);
        let compile = || {
            let mut pointer = ptr::null_mut();
            // SAFETY: all strings live until the call returns.
            let status = unsafe {
                sys::ov_core_compile_model_props(
                    self.0.pointer,
                    model.0.pointer,
                    device.as_ptr(),
                    pairs.len(),
                    pairs.as_ptr(),
                    &mut pointer,
                )
            };
            check(status).map(|()| pointer)
        };
        let pointer = match &model.1.file {
            Some(spilled) => spilled.while_dropping(compile)?,
            None => compile()?,
        };
        let compiled = Owned { pointer, free: sys::ov_compiled_model_free };
        Ok(Compiled(compiled, Needs::Memory(model.1.clone())))
    }

    /// A compiled model from the file that [`Compiled::export`] wrote, with the properties that it was compiled with.
    ///
    /// What was written does not hold them, and without them a model runs at the plugin's defaults. The library's
    /// function takes none, so they are set on a root object that imports this model only. Constants are not copied: they
    /// stay in the file, which the compiled model keeps. Models with pages need the shim.
    pub fn import(
        bytes: MappedFile,
        device: &str,
        properties: &[(String, String)],
        shim: Option<&Shim>,
    ) -> Result<Compiled, Failure> {
        let core = Self::new()?;
        if let Some(shim) = shim {
            shim.call(shim.read_attention, core.0.pointer.cast())?;
        }
        let device = text(device)?;
        let texts = texts(properties)?;
        let pairs = pairs(&texts);
        // SAFETY: all strings live until the call returns.
        let status = unsafe {
            sys::ov_core_set_properties(core.0.pointer, device.as_ptr(), pairs.len(), pairs.as_ptr())
        };
        check(status)?;
        let mut pointer = ptr::null_mut();
        // SAFETY: bytes and length belong together; the result keeps the bytes, which it reads as long as it lives.
        let status = unsafe {
            sys::ov_core_import_model(
                core.0.pointer,
                bytes.as_ptr().cast(),
                bytes.len(),
                device.as_ptr(),
                &mut pointer,
            )
        };
        check(status)?;
        Ok(Compiled(Owned { pointer, free: sys::ov_compiled_model_free }, Needs::File(core, bytes)))
    }
}

/// Keys and values in the library's form.
fn texts(properties: &[(String, String)]) -> Result<Vec<(CString, CString)>, Failure> {
    properties.iter().map(|(key, value)| Ok((text(key)?, text(value)?))).collect()
}

/// Pointers to texts, which must outlive them.
fn pairs(texts: &[(CString, CString)]) -> Vec<sys::ov_property_t> {
    let pair = |(key, value): &(CString, CString)| sys::ov_property_t {
        key: key.as_ptr(),
        value: value.as_ptr().cast(),
    };
    texts.iter().map(pair).collect()
}

/// A model that was read, and its constants.
pub struct Model(Owned<sys::ov_model_t>, Constants);

impl Model {
    /// Puts paged attention in the place of the layers that stand for it.
    pub fn page(&mut self, shim: &Shim) -> Result<(), Failure> {
        shim.call(shim.page_attention, self.0.pointer.cast())
    }
}

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

    fn call(&self, function: OnObject, object: *mut c_void) -> Result<(), Failure> {
        // SAFETY: the object is one of the C interface's own, of the kind that the function expects.
        with_message(|message, length| unsafe { function(object, message, length) })
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

/// A model compiled for a device, and what must live as long as it.
pub struct Compiled(Owned<sys::ov_compiled_model_t>, Needs);

/// Memory that constants lie in; the root object that imported a model, and the file that its constants lie in.
enum Needs {
    Memory(Constants),
    File(#[expect(dead_code)] Core, MappedFile),
}

impl Compiled {
    /// Something to run it with; each has variables of its own.
    pub fn request(&self) -> Result<Request, Failure> {
        let mut pointer = ptr::null_mut();
        // SAFETY: the function stores a new object in the pointer.
        check(unsafe { sys::ov_compiled_model_create_infer_request(self.0.pointer, &mut pointer) })?;
        Ok(Request(Owned { pointer, free: sys::ov_infer_request_free }))
    }

    /// Does work in which the plugin reads constants to arrange them anew, while their pages are dropped where they lie in a
    /// file.
    pub fn while_dropping<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.1 {
            Needs::Memory(Constants { file: Some(spilled), .. }) => spilled.while_dropping(work),
            Needs::Memory(_) | Needs::File(..) => work(),
        }
    }

    /// Bytes of its constants; of an imported model, of the whole file.
    pub fn constants(&self) -> u64 {
        match &self.1 {
            Needs::Memory(constants) => constants.bytes,
            Needs::File(_, file) => file.len() as u64,
        }
    }

    /// Names of inputs and of outputs, in order.
    pub fn names(&self) -> Result<(Vec<String>, Vec<String>), Failure> {
        let inputs =
            self.names_of(sys::ov_compiled_model_inputs_size, sys::ov_compiled_model_input_by_index)?;
        let outputs =
            self.names_of(sys::ov_compiled_model_outputs_size, sys::ov_compiled_model_output_by_index)?;
        Ok((inputs, outputs))
    }

    /// Names of the ports that two functions of the library count and find.
    fn names_of(
        &self,
        count: unsafe fn(*const sys::ov_compiled_model_t, *mut usize) -> sys::ov_status_e,
        find: unsafe fn(
            *const sys::ov_compiled_model_t,
            usize,
            *mut *mut sys::ov_output_const_port_t,
        ) -> sys::ov_status_e,
    ) -> Result<Vec<String>, Failure> {
        let mut length = 0;
        // SAFETY: the function stores a number.
        check(unsafe { count(self.0.pointer, &mut length) })?;
        let name_of = |index: usize| {
            let mut port = ptr::null_mut();
            let mut name: *mut c_char = ptr::null_mut();
            // SAFETY: the port is freed after its name is asked for, the name after it is copied.
            unsafe {
                check(find(self.0.pointer, index, &mut port))?;
                let status = check(sys::ov_port_get_any_name(port, &mut name));
                sys::ov_output_const_port_free(port);
                status?;
                let text = CStr::from_ptr(name).to_string_lossy().into_owned();
                sys::ov_free(name);
                Ok(text)
            }
        };
        (0..length).map(name_of).collect()
    }

    /// Writes it to a file. Success does not mean that all of it was written: the library does not look.
    pub fn export(&self, path: &Path) -> Result<(), Failure> {
        let path = text(&path.to_string_lossy())?;
        self.while_dropping(|| {
            // SAFETY: the path ends with zero.
            check(unsafe { sys::ov_compiled_model_export_model(self.0.pointer, path.as_ptr()) })
        })
    }

    /// Element type, if it is one of ours, and extents of an input, dynamic ones as `None`.
    pub fn input_type(&self, name: &str) -> Result<(Option<Element>, Vec<Option<u64>>), Failure> {
        let name = text(name)?;
        let mut port = ptr::null_mut();
        let mut kind = sys::ov_element_type_e::F32;
        let mut shape =
            sys::ov_partial_shape_t { rank: sys::ov_dimension_t { min: 0, max: 0 }, dims: ptr::null_mut() };
        // SAFETY: port and shape are filled by the library and freed after their numbers are copied.
        unsafe {
            check(sys::ov_compiled_model_input_by_name(self.0.pointer, name.as_ptr(), &mut port))?;
            let status = check(sys::ov_port_get_element_type(port, &mut kind))
                .and_then(|()| check(sys::ov_port_get_partial_shape(port, &mut shape)));
            sys::ov_output_const_port_free(port);
            status?;
            let rank = usize::try_from(shape.rank.max).unwrap_or(0);
            let extents = (0..rank).map(|axis| {
                let extent = *shape.dims.add(axis);
                (extent.min == extent.max).then_some(extent.min.unsigned_abs())
            });
            let extents = extents.collect();
            sys::ov_partial_shape_free(&mut shape);
            Ok((of_library(kind), extents))
        }
    }
}

/// Bytes of an input.
pub enum Bytes<'a> {
    /// Read only.
    Read(&'a [u8]),
    /// The model may write there, too.
    Write(&'a mut [u8]),
}

/// An input of one run.
pub struct Input<'a> {
    /// Name of the parameter.
    pub name: &'a CStr,
    /// Element type.
    pub element: Element,
    /// Extents.
    pub shape: Vec<i64>,
    /// Its bytes, as many as the shape says.
    pub bytes: Bytes<'a>,
}

/// Time that one operation took.
pub struct OperationTime {
    /// Kind of operation and its implementation.
    pub kind: String,
    /// Microseconds.
    pub microseconds: i64,
}

/// One line of execution of a compiled model.
pub struct Request(Owned<sys::ov_infer_request_t>);

impl Request {
    /// Runs the model once. Every parameter of the model is among the inputs, so it reads no memory of earlier runs.
    pub fn run(&mut self, mut inputs: Vec<Input<'_>>) -> Result<(), Failure> {
        for input in &mut inputs {
            let elements: i64 = input.shape.iter().product();
            let (pointer, length) = match &mut input.bytes {
                Bytes::Read(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
                Bytes::Write(bytes) => (bytes.as_mut_ptr(), bytes.len()),
            };
            if elements.unsigned_abs() * input.element.bits() as u64 > 8 * length as u64 {
                let name = input.name.to_string_lossy();
                return Err(format!("input {name} has {length} bytes, shape {:?}", input.shape));
            }
            // SAFETY: the memory is as large as shape and type say (checked above), and is borrowed until this
            // function returns; plugins write only to inputs that are given for writing.
            let tensor = unsafe { Tensor::over(input.element, &input.shape, pointer) }?;
            // SAFETY: name and tensor live until the call returns; the request takes a share of the tensor.
            check(unsafe {
                sys::ov_infer_request_set_tensor(self.0.pointer, input.name.as_ptr(), tensor.0.pointer)
            })
            .map_err(|error| format!("input {}: {error}", input.name.to_string_lossy()))?;
        }
        // SAFETY: the memory of all inputs is borrowed by `inputs`, which lives until after the call.
        check(unsafe { sys::ov_infer_request_infer(self.0.pointer) })?;
        drop(inputs);
        Ok(())
    }

    /// Leaves these rows in the variables that keys and values are appended to, in this order; each is there.
    pub fn keep_columns(&mut self, shim: &Shim, columns: &[u64]) -> Result<(), Failure> {
        let object = self.0.pointer.cast();
        // SAFETY: the object is a request, which nobody else uses meanwhile; the numbers are as many as said.
        with_message(|message, length| unsafe {
            (shim.keep_columns)(object, columns.as_ptr(), columns.len(), message, length)
        })
    }

    /// Calls `read` with an output's bytes and extents.
    pub fn output<R>(&self, name: &CStr, read: impl FnOnce(&[u8], &[i64]) -> R) -> Result<R, Failure> {
        let mut pointer = ptr::null_mut();
        // SAFETY: the name ends with zero; the tensor is freed by its owner.
        check(unsafe { sys::ov_infer_request_get_tensor(self.0.pointer, name.as_ptr(), &mut pointer) })?;
        let tensor = Owned { pointer, free: sys::ov_tensor_free };
        let mut shape = sys::ov_shape_t { rank: 0, dims: ptr::null_mut() };
        let (mut data, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the library fills shape, pointer and length of a tensor that lives until this function returns, and
        // no run happens meanwhile, since the request is borrowed.
        unsafe {
            check(sys::ov_tensor_get_shape(tensor.pointer, &mut shape))?;
            let extents = (0..usize::try_from(shape.rank).unwrap_or(0))
                .map(|axis| *shape.dims.add(axis))
                .collect::<Vec<_>>();
            sys::ov_shape_free(&mut shape);
            check(sys::ov_tensor_get_byte_size(tensor.pointer, &mut length))?;
            if length == 0 {
                return Ok(read(&[], &extents));
            }
            check(sys::ov_tensor_data(tensor.pointer, &mut data))?;
            Ok(read(std::slice::from_raw_parts(data.cast::<u8>(), length), &extents))
        }
    }

    /// Times of the operations of the last run; the model is compiled with `PERF_COUNT`.
    pub fn times(&self) -> Result<Vec<OperationTime>, Failure> {
        let mut list = sys::ov_profiling_info_list_t { profiling_infos: ptr::null_mut(), size: 0 };
        // SAFETY: the library fills the list, whose strings are copied before it is freed.
        unsafe {
            check(sys::ov_infer_request_get_profiling_info(self.0.pointer, &mut list))?;
            let copy = |text: *const c_char| CStr::from_ptr(text).to_string_lossy().into_owned();
            let times = (0..list.size)
                .map(|index| {
                    let info = &*list.profiling_infos.add(index);
                    OperationTime {
                        kind: format!("{} {}", copy(info.node_type), copy(info.exec_type)),
                        microseconds: info.real_time,
                    }
                })
                .collect();
            sys::ov_profiling_info_list_free(&mut list);
            Ok(times)
        }
    }
}

/// Memory of a file without a name, whose pages the system keeps only as long as it has room for them.
pub struct Spilled(memmap2::MmapMut);

/// Pages are dropped as often while a model is compiled or runs for the first time.
const DROP_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

impl Spilled {
    /// Memory that `fill` writes, in a file in this folder.
    fn filled(folder: &Path, bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Self, Failure> {
        let shown = |error: std::io::Error| format!("{}: {error}", folder.display());
        let file = tempfile::tempfile_in(folder).map_err(shown)?;
        take_room(&file, bytes.max(1)).map_err(shown)?;
        // SAFETY: the file has no name, so nobody else changes or shortens it.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.map_err(shown)?;
        // SAFETY: the map has so many bytes and outlives this function; until it ends nothing else reads or writes them.
        let all = unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr(), bytes as usize) };
        let spilled = Self(map);
        spilled.while_dropping(|| fill(all));
        Ok(spilled)
    }

    /// Does work that reads or writes the memory once, while pages are dropped again and again, so that few are resident at a time.
    /// They come back from the file when they are read again.
    fn while_dropping<R>(&self, work: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            let (working, done) = mpsc::channel::<()>();
            scope.spawn(move || {
                while done.recv_timeout(DROP_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    self.drop_pages();
                }
                self.drop_pages();
            });
            let result = work();
            drop(working);
            result
        })
    }

    fn drop_pages(&self) {
        #[cfg(unix)]
        // SAFETY: this is a shared map of a file, so what was written is in the file and nothing is lost.
        let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

/// Makes a new file so long that what is written to its pages has a place: without one, writing to a page when the disk is
/// full ends the process.
fn take_room(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let length = i64::try_from(bytes).map_err(std::io::Error::other)?;
        loop {
            // SAFETY: the file is open.
            match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
                0 => return Ok(()),
                libc::EINTR => {}
                // Not every file system can.
                libc::EOPNOTSUPP | libc::EINVAL => break,
                error => return Err(std::io::Error::from_raw_os_error(error)),
            }
        }
    }
    let zeros = std::io::Read::take(std::io::repeat(0), bytes);
    std::io::copy(&mut std::io::BufReader::with_capacity(1 << 20, zeros), &mut &*file).map(|_| ())
}

/// A whole file that is only read, whose pages the system keeps only as long as it has room for them.
pub struct MappedFile(Option<memmap2::Mmap>);

impl MappedFile {
    /// Of a file that is not changed while it is used: files of compiled models are replaced as a whole.
    pub fn of(file: &std::fs::File) -> std::io::Result<Self> {
        // Nothing cannot be mapped.
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: by this function's contract.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Self(Some(map)))
    }
}

impl std::ops::Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// Where bytes that do not change lie.
#[derive(Clone, Default)]
struct Constants {
    /// The file, if they lie in one.
    file: Option<Arc<Spilled>>,
    bytes: u64,
}

/// Memory with a type and extents; of what was made with its bytes, where they lie.
pub struct Tensor(Owned<sys::ov_tensor_t>, Constants);

impl Tensor {
    /// Bytes that `fill` writes, in memory that the library frees when nothing needs it any more.
    pub fn filled(bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Self, Failure> {
        // A tensor of no bytes has no memory to show.
        let length = i64::try_from(bytes.max(1)).map_err(|_| format!("{bytes} bytes are too many"))?;
        let mut pointer = ptr::null_mut();
        let shape = Shape::new(&[length])?;
        // SAFETY: the shape is valid; the function stores a new tensor in the pointer.
        check(unsafe { sys::ov_tensor_create(sys::ov_element_type_e::U8, shape.0, &mut pointer) })?;
        let tensor = Self(Owned { pointer, free: sys::ov_tensor_free }, Constants { file: None, bytes });
        let mut data = ptr::null_mut();
        // SAFETY: the tensor was made with so many bytes and nobody else has it yet. Its memory is made zero before it
        // is seen as bytes.
        unsafe {
            check(sys::ov_tensor_data(tensor.0.pointer, &mut data))?;
            let data = data.cast::<u8>();
            ptr::write_bytes(data, 0, bytes as usize);
            fill(std::slice::from_raw_parts_mut(data, bytes as usize));
        }
        Ok(tensor)
    }

    /// Bytes that `fill` writes, in a file in this folder.
    pub fn spilled(folder: &Path, bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Self, Failure> {
        let length = i64::try_from(bytes.max(1)).map_err(|_| format!("{bytes} bytes are too many"))?;
        let spilled = Spilled::filled(folder, bytes, fill)?;
        // SAFETY: the map has so many bytes, and whatever is made of the tensor keeps it: the tensor itself, a model that
        // is read with it, what is compiled from that. The library only reads constants.
        let mut tensor = unsafe { Self::over(Element::U8, &[length], spilled.0.as_ptr().cast_mut()) }?;
        tensor.1 = Constants { file: Some(Arc::new(spilled)), bytes };
        Ok(tensor)
    }

    /// A tensor over memory of somebody else.
    ///
    /// # Safety
    /// `pointer` leads to as many bytes as type and extents say, for as long as anything uses the tensor.
    unsafe fn over(kind: Element, shape: &[i64], pointer: *mut u8) -> Result<Self, Failure> {
        let mut tensor = ptr::null_mut();
        let shape = Shape::new(shape)?;
        // SAFETY: by this function's contract.
        check(unsafe {
            sys::ov_tensor_create_from_host_ptr(element(kind), shape.0, pointer.cast::<c_void>(), &mut tensor)
        })?;
        Ok(Self(Owned { pointer: tensor, free: sys::ov_tensor_free }, Constants::default()))
    }
}

/// Extents in the library's form.
struct Shape(sys::ov_shape_t);

impl Shape {
    fn new(extents: &[i64]) -> Result<Self, Failure> {
        let mut shape = sys::ov_shape_t { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the function copies so many extents.
        check(unsafe { sys::ov_shape_create(extents.len() as i64, extents.as_ptr(), &mut shape) })?;
        Ok(Self(shape))
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        // SAFETY: the shape was made by the library and is freed once.
        unsafe {
            sys::ov_shape_free(&mut self.0);
        }
    }
}
