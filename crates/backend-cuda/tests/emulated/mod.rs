//! The kernels compiled for the processor (see `kernels/emulation.h`), behind the same host code.

#![allow(clippy::print_stdout)]

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use puna_backend::{Backend, BackendError, DeviceInfo, DeviceKind};
use puna_backend_cuda::Cuda;
use sha2::{Digest, Sha256};

use puna_gpu::{
    Address, Api, Argument, Blocks, BufferId, Device, Division, Extents, Gpu, Launch, Link, MatrixUnits,
    Recording, Team,
};

type Run = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    c_uint,
    c_uint,
    *mut *mut c_void,
    *const c_char,
) -> *const c_char;

/// A card, else the emulation; nothing where there is neither.
#[allow(dead_code)] // not every test file asks for it
pub fn device() -> Option<Box<dyn Backend>> {
    match Cuda::find() {
        Ok(cuda) => Some(Box::new(cuda)),
        Err(error) => {
            println!("emulated: {error}");
            Some(Box::new(backend()?))
        }
    }
}

/// Nothing where there is no g++ for x86-64; then the reason is printed.
pub fn backend() -> Option<Gpu<Emulated>> {
    match library() {
        Ok(run) => Some(Gpu::new(Emulated { run })),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn library() -> Result<Run, String> {
    static LIBRARY: OnceLock<Result<Run, String>> = OnceLock::new();
    LIBRARY.get_or_init(build).clone()
}

fn build() -> Result<Run, String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the emulation is for Linux on x86-64".into());
    }
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    // Kept for the next run under the digest of the sources.
    let mut sources: Vec<_> = std::fs::read_dir(&kernels)
        .map_err(|error| error.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    sources.sort();
    let mut digest = Sha256::new();
    sources.iter().filter_map(|path| std::fs::read(path).ok()).for_each(|bytes| digest.update(bytes));
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("emulation-{digest}.so"));
    if !library.exists() {
        let work = tempfile::tempdir_in(folder).map_err(|error| error.to_string())?;
        let mut objects = Vec::new();
        for (name, _) in puna_backend_cuda::IMAGES {
            let object = work.path().join(format!("{name}.o"));
            let output = Command::new("g++")
                .args(["-std=c++17", "-O1", "-fPIC", "-DPUNA_EMULATION", "-w", "-x", "c++", "-c", "-o"])
                .arg(&object)
                .arg(kernels.join(format!("{name}.cu")))
                .output()
                .map_err(|error| format!("g++ does not run: {error}"))?;
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            objects.push(object);
        }
        let made = work.path().join("emulation.so");
        let output = Command::new("g++").args(["-shared", "-o"]).arg(&made).args(&objects).output();
        let output = output.map_err(|error| error.to_string())?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&made, &library).map_err(|error| error.to_string())?;
    }
    let path = CString::new(library.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the library is made of our sources; its initialisers register kernels.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "the emulation does not load");
    // SAFETY: the library is open, the name ends with a zero.
    let symbol = unsafe { libc::dlsym(handle, c"emulation_launch".as_ptr()) };
    assert!(!symbol.is_null(), "the emulation has no launcher");
    // SAFETY: the function has this type.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Run>(symbol) })
}

/// Devices by matrix units and processors, which decide what is cut into parts and what into large tiles.
const DEVICES: [(MatrixUnits, u32); 3] =
    [(MatrixUnits::Group, 3), (MatrixUnits::Warp, 3), (MatrixUnits::Group, 1)];

/// See the module.
pub struct Emulated {
    run: Run,
}

impl Api for Emulated {
    fn name(&self) -> &'static str {
        "emulation"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        DEVICES
            .iter()
            .enumerate()
            .map(|(index, (units, _))| DeviceInfo {
                name: format!("emulation{index}"),
                description: format!("kernels on the processor, matrix units {units:?}"),
                kind: DeviceKind::Gpu,
                memory: None,
            })
            .collect()
    }

    fn open(&self, index: usize) -> Result<Box<dyn Device>, BackendError> {
        Ok(Box::new(self.device(index)))
    }

    fn open_divided(
        &self,
        name: &str,
        indexes: &[usize],
        division: &Division,
    ) -> Result<Box<dyn Device>, BackendError> {
        let open = |index| Ok(self.device(index));
        Ok(Box::new(Team::<_, EmulatedLink>::open(name, indexes, division, open, |_| true)?))
    }
}

impl Emulated {
    fn device(&self, index: usize) -> EmulatedDevice {
        let (units, processors) = DEVICES[index];
        EmulatedDevice { run: self.run, units, processors, buffers: Vec::new(), recordings: Vec::new() }
    }
}

/// Copies between emulated devices.
struct EmulatedLink;

impl Link<EmulatedDevice> for EmulatedLink {
    fn connect(_: &mut [EmulatedDevice]) -> Result<Self, BackendError> {
        Ok(Self)
    }

    fn exchange(
        &mut self,
        members: &mut [EmulatedDevice],
        values: &[&[Blocks]],
        extents: Extents,
    ) -> Result<(), BackendError> {
        for from in 0..members.len() {
            for value in 0..values[from].len() {
                let place = |member: usize| {
                    let blocks = &values[member][value];
                    let range = blocks.range(from, extents);
                    (blocks.address.plus(range.start), range.end - range.start)
                };
                let (at, bytes) = place(from);
                let made = members[from].bytes(at, bytes).to_vec();
                for to in (0..members.len()).filter(|to| *to != from) {
                    let (at, bytes) = place(to);
                    members[to].bytes(at, bytes).copy_from_slice(&made);
                }
            }
        }
        Ok(())
    }
}

struct EmulatedDevice {
    run: Run,
    units: MatrixUnits,
    processors: u32,
    buffers: Vec<Vec<u128>>,
    recordings: Vec<(Vec<Launch>, Extents)>,
}

impl EmulatedDevice {
    fn bytes(&mut self, at: Address, bytes: u64) -> &mut [u8] {
        let buffer = &mut self.buffers[at.buffer.0];
        let (pointer, size) = (buffer.as_mut_ptr(), buffer.len() * 16);
        assert!(at.offset + bytes <= size as u64, "{bytes} bytes at {at:?} of {size}");
        // SAFETY: the range lies in the buffer, which is borrowed.
        unsafe {
            std::slice::from_raw_parts_mut(pointer.cast::<u8>().add(at.offset as usize), bytes as usize)
        }
    }
}

/// Kernels share the emulation's variables.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Device for EmulatedDevice {
    fn name(&self) -> &str {
        "emulation"
    }

    fn processors(&self) -> u32 {
        self.processors
    }

    fn matrix_units(&self) -> MatrixUnits {
        self.units
    }

    fn shared_bytes(&self) -> u32 {
        200 << 10
    }

    fn allocate(&mut self, bytes: u64, _: &'static str) -> Result<BufferId, BackendError> {
        puna_gpu::count_allocation();
        // What nobody wrote is not a number.
        self.buffers.push(vec![u128::MAX; bytes.div_ceil(16) as usize]);
        Ok(BufferId(self.buffers.len() - 1))
    }

    fn clear(&mut self, at: Address, bytes: u64) -> Result<(), BackendError> {
        self.bytes(at, bytes).fill(0);
        Ok(())
    }

    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.bytes(at, bytes.len() as u64).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), BackendError> {
        bytes.copy_from_slice(self.bytes(at, bytes.len() as u64));
        Ok(())
    }

    fn copy(&mut self, from: Address, to: Address, bytes: u64) -> Result<(), BackendError> {
        let copied = self.bytes(from, bytes).to_vec();
        self.bytes(to, bytes).copy_from_slice(&copied);
        Ok(())
    }

    fn run(&mut self, launches: &[Launch], extents: Extents) -> Result<(), BackendError> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        for launch in launches {
            let mut values = Vec::new();
            let mut kinds = String::new();
            for argument in &launch.arguments {
                let (value, kind) = match *argument {
                    Argument::Address(at) => (self.bytes(at, 1).as_ptr() as u64, 'p'),
                    Argument::Null => (0, 'p'),
                    Argument::Int(integer) => (integer as u32 as u64, 'i'),
                    Argument::Long(integer) => (integer as u64, 'l'),
                    Argument::Float(float) => (float.to_bits() as u64, 'f'),
                    Argument::Rows(symbol, times) => (extents.rows(symbol) as u64 * times as u64, 'i'),
                };
                values.push(value);
                kinds.push(kind);
            }
            // Those that are one parameter lie together.
            if launch.arguments.len() > launch.single {
                kinds.truncate(launch.single);
                kinds.push('s');
            }
            let mut pointers: Vec<*mut c_void> =
                values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
            let grid = launch.grid.map(|extent| extents.blocks(extent));
            let name = CString::new(launch.kernel.clone()).expect("a name");
            let kinds = CString::new(kinds).expect("letters");
            // SAFETY: the emulation compares the kinds with the kernel's parameters before it reads the values.
            let message = unsafe {
                (self.run)(
                    name.as_ptr(),
                    grid.as_ptr(),
                    launch.threads,
                    launch.shared,
                    pointers.as_mut_ptr(),
                    kinds.as_ptr(),
                )
            };
            if !message.is_null() {
                // SAFETY: it is a string of the library.
                let reason = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
                return Err(BackendError::Device { device: "emulation".into(), reason });
            }
        }
        Ok(())
    }

    fn record(&mut self, lists: &[&[Launch]], extents: Extents) -> Result<Recording, BackendError> {
        self.recordings.push((lists.concat(), extents));
        Ok(Recording(self.recordings.len() - 1))
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        let (launches, extents) = self.recordings[recording.0].clone();
        self.run(&launches, extents)
    }

    fn finish(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}
