//! Compiled models, and running them.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr;

use openvino_sys as sys;

use super::{Constants, Core, Exported, Failure, Owned, Shim, Tensor, check, of_library, text};
use crate::ir::Element;

/// A model compiled for a device, and what must live as long as it.
pub struct Compiled(Owned<sys::ov_compiled_model_t>, Needs);

/// Memory that constants lie in; the root object that imported a model, and the file that its constants lie in.
pub(super) enum Needs {
    Memory(Constants),
    File(#[expect(dead_code)] Core, Exported),
}

impl Compiled {
    pub(super) fn new(compiled: Owned<sys::ov_compiled_model_t>, needs: Needs) -> Self {
        Self(compiled, needs)
    }

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
            Needs::Memory(_) => work(),
            Needs::File(_, exported) => exported.while_dropping(work),
        }
    }

    /// Bytes of its constants; of an imported model, of the whole file.
    pub fn constants(&self) -> u64 {
        match &self.1 {
            Needs::Memory(constants) => constants.bytes,
            Needs::File(_, exported) => exported.file.len() as u64,
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
pub struct Request(pub(super) Owned<sys::ov_infer_request_t>);

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
        shim.keep_columns(self, columns)
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
