//! The C interface of OpenVINO as safe types. The only module of this crate with `unsafe`.

#![allow(unsafe_code)]

mod compiled;
mod files;
mod shim;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use openvino_sys as sys;
use openvino_sys::ov_status_e::OK;

use compiled::Needs;
pub use compiled::{Bytes, Compiled, Input, Request};
pub use files::MappedFile;
use files::Spilled;
pub use shim::Shim;

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
        Ok(Compiled::new(compiled, Needs::Memory(model.1.clone())))
    }

    /// A compiled model from the file that [`Compiled::export`] wrote, with the properties that it was compiled with.
    ///
    /// What was written does not hold them, and without them a model runs at the plugin's defaults. The library's
    /// function takes none, so they are set on a root object that imports this model only. Constants are not copied: they
    /// stay in the file, which the compiled model keeps. Models with pages need the shim.
    pub fn import(
        source: Exported,
        device: &str,
        properties: &[(String, String)],
        shim: Option<&Shim>,
    ) -> Result<Compiled, Failure> {
        let core = Self::new()?;
        if let Some(shim) = shim {
            shim.read_attention(&core)?;
        }
        let device = text(device)?;
        let texts = texts(properties)?;
        let pairs = pairs(&texts);
        // SAFETY: all strings live until the call returns.
        let status = unsafe {
            sys::ov_core_set_properties(core.0.pointer, device.as_ptr(), pairs.len(), pairs.as_ptr())
        };
        check(status)?;
        let bytes = &source.file;
        let pointer = source.while_dropping(|| {
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
            check(status).map(|()| pointer)
        })?;
        let compiled = Owned { pointer, free: sys::ov_compiled_model_free };
        Ok(Compiled::new(compiled, Needs::File(core, source)))
    }
}

/// A compiled model in a file.
pub struct Exported {
    /// What [`Compiled::export`] wrote.
    pub file: MappedFile,
    /// Pages of the file are dropped while much of it is read.
    pub drops_pages: bool,
}

impl Exported {
    /// Does work that reads much of the file.
    fn while_dropping<R>(&self, work: impl FnOnce() -> R) -> R {
        if self.drops_pages { self.file.while_dropping(work) } else { work() }
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
        shim.page_attention(self)
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
        let mut tensor = unsafe { Self::over(Element::U8, &[length], spilled.as_ptr().cast_mut()) }?;
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
