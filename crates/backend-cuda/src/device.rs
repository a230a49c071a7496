//! One device with a queue: memory, copies, launches, recorded graphs.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use puna_backend::BackendError;
use puna_gpu::{
    Address, Argument, BufferId, Device, Extents, Floats, Launch, MatrixUnits, Recording, count_allocation,
};

use crate::Images;
use crate::driver::{
    DeviceNumber, DevicePointer, Driver, Handle, LaunchAttribute, LaunchConfig,
    MAX_DYNAMIC_SHARED_SIZE_BYTES, OUT_OF_MEMORY, PREFERRED_SHARED_MEMORY_CARVEOUT,
    PROGRAMMATIC_STREAM_SERIALIZATION, REACHED_ALREADY, Status, WITHOUT_TIME,
};
use crate::mail::{MAIL_WORDS, Mail};

/// What a device can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Name as given to `--device`.
    pub name: String,
    /// Number in the driver.
    pub number: DeviceNumber,
    /// Multiprocessors.
    pub processors: u32,
    /// Compute capability, 90 for 9.0.
    pub capability: u32,
    /// Shared memory that a block may have.
    pub shared_bytes: u32,
}

/// Bytes of host memory that the device copies from and to by itself.
const STAGING: usize = 8 << 20;

/// Threads of the kernel that brings small writes to their places.
const DELIVERING: u32 = 256;

/// Arguments of a launch, at most.
const MOST_ARGUMENTS: usize = 128;

/// Places in host memory that floats are lent from, at most; when all are looked at, floats are copied.
const MOST_LENT: usize = 4;

/// See the module.
pub struct CudaDevice {
    driver: &'static Driver,
    facts: Facts,
    context: Handle,
    stream: Handle,
    modules: Vec<Handle>,
    functions: HashMap<String, Function>,
    buffers: Vec<(DevicePointer, u64)>,
    executables: Vec<Handle>,
    staging: *mut u8,
    /// Small writes since the last graph, and whether that graph may still have to read those before, which lie after the staging.
    mail: Mail,
    mail_sent: bool,
    /// Host memory that floats are lent from.
    lent: Vec<Arc<HostFloats>>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    shared: u32,
}

// SAFETY: the driver's handles may be used from any thread, one at a time; each use makes the context current.
unsafe impl Send for CudaDevice {}

impl CudaDevice {
    /// Opens a device: its context, a queue and the kernels.
    pub fn open(driver: &'static Driver, facts: Facts, images: &Images) -> Result<Self, BackendError> {
        let mut device = Self {
            driver,
            facts,
            context: std::ptr::null_mut(),
            stream: std::ptr::null_mut(),
            modules: Vec::new(),
            functions: HashMap::new(),
            buffers: Vec::new(),
            executables: Vec::new(),
            staging: std::ptr::null_mut(),
            mail: Mail::new(),
            mail_sent: false,
            lent: Vec::new(),
        };
        // SAFETY: pointers are to handles of ours; the images are complete and live as long as the program.
        unsafe {
            let status = (driver.context)(&mut device.context, device.facts.number);
            device.check(status, "opening the device")?;
            device.enter()?;
            // Without synchronisation with other queues.
            let status = (driver.create_stream)(&mut device.stream, 1);
            device.check(status, "making a queue")?;
            for (name, image) in images {
                let mut module = std::ptr::null_mut();
                let status = (driver.load_module)(&mut module, image.as_ptr().cast());
                device.check(status, &format!("loading the kernels of {name}"))?;
                device.modules.push(module);
            }
            let mut staging = std::ptr::null_mut();
            device.check(
                (driver.allocate_host)(&mut staging, STAGING + 4 * MAIL_WORDS, 0),
                "taking host memory",
            )?;
            device.staging = staging.cast();
        }
        Ok(device)
    }

    /// Makes the context current.
    pub fn enter(&self) -> Result<(), BackendError> {
        // SAFETY: the context is this device's.
        self.check(unsafe { (self.driver.set_context)(self.context) }, "entering the context")
    }

    /// Enters the context; small writes that wait come before what follows.
    fn begin(&mut self) -> Result<(), BackendError> {
        self.enter()?;
        for (to, words) in self.mail.letters() {
            // SAFETY: the range was looked at when the write was taken; the driver has taken pageable memory in when it returns.
            let status =
                unsafe { (self.driver.write)(to, words.as_ptr().cast(), size_of_val(words), self.stream) };
            self.check(status, "copying to the device")?;
        }
        self.mail.clear();
        Ok(())
    }

    /// Waits for all that was asked for.
    fn wait(&mut self) -> Result<(), BackendError> {
        // SAFETY: the stream is this device's.
        self.check(unsafe { (self.driver.synchronize)(self.stream) }, "running")?;
        self.mail_sent = false;
        Ok(())
    }

    /// Launches the kernel that brings small writes to their places.
    fn launch_delivery(&mut self) -> Result<(), BackendError> {
        let function = self.function("deliver", 0)?;
        // SAFETY: the staging memory is longer than this.
        let mut mail = unsafe { self.staging.add(STAGING) };
        let mut pointers = [(&raw mut mail).cast::<c_void>()];
        let config = LaunchConfig {
            grid: [1; 3],
            block: [DELIVERING, 1, 1],
            shared: 0,
            stream: self.stream,
            attributes: std::ptr::null(),
            count: 0,
        };
        // SAFETY: the kernel has this parameter; devices read host memory of the driver by its address.
        let status =
            unsafe { (self.driver.launch)(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()) };
        self.check(status, "launching deliver")
    }

    fn check(&self, status: Status, doing: &str) -> Result<(), BackendError> {
        match status {
            0 => Ok(()),
            status => Err(self.error(format!("{doing} failed: {}", self.driver.name_of(status)))),
        }
    }

    fn error(&self, reason: String) -> BackendError {
        BackendError::Device { device: self.facts.name.clone(), reason }
    }

    /// The device address of a range, if it lies in the buffer.
    pub fn pointer(&self, at: Address, bytes: u64) -> Result<DevicePointer, BackendError> {
        match self.buffers.get(at.buffer.0) {
            Some((base, size)) if at.offset.checked_add(bytes).is_some_and(|end| end <= *size) => {
                Ok(base + at.offset)
            }
            _ => Err(self.error(format!("{bytes} bytes at {at:?} are not there"))),
        }
    }

    fn function(&mut self, name: &str, shared: u32) -> Result<Handle, BackendError> {
        let mut function = match self.functions.get(name) {
            Some(function) => *function,
            None => {
                let symbol = CString::new(name).unwrap_or_default();
                let found = self.modules.iter().find_map(|module| {
                    let mut handle = std::ptr::null_mut();
                    // SAFETY: the module is loaded, the name ends with a zero.
                    let status = unsafe { (self.driver.function)(&mut handle, *module, symbol.as_ptr()) };
                    (status == 0).then_some(handle)
                });
                let handle = found.ok_or_else(|| self.error(format!("there is no kernel {name}")))?;
                Function { handle, shared: 0 }
            }
        };
        if shared > 32 << 10 && shared > function.shared {
            let set = self.driver.set_function_attribute;
            // SAFETY: the function is one of the loaded modules.
            let status = unsafe { set(function.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32) };
            self.check(status, &format!("giving {shared} bytes of shared memory to {name}"))?;
            // A processor would wait until it is idle to divide its memory in another way.
            // SAFETY: the same.
            let status = unsafe { set(function.handle, PREFERRED_SHARED_MEMORY_CARVEOUT, 100) };
            self.check(status, &format!("preferring shared memory for {name}"))?;
            function.shared = shared;
        }
        self.functions.insert(name.to_string(), function);
        Ok(function.handle)
    }

    /// Launches a kernel, which may start before the one before it has ended if it comes `early`.
    fn launch(&mut self, launch: &Launch, extents: Extents, early: bool) -> Result<(), BackendError> {
        let function = self.function(&launch.kernel, launch.shared)?;
        let mut values = [0_u64; MOST_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        if launch.arguments.len() > values.len() {
            return Err(self.error(format!("{} has too many arguments", launch.kernel)));
        }
        for (index, argument) in launch.arguments.iter().enumerate() {
            // Arguments are read by their own size from the start: little-endian.
            values[index] = match *argument {
                Argument::Address(at) => self.pointer(at, 1)?,
                Argument::Null => 0,
                Argument::Int(integer) => integer as u32 as u64,
                Argument::Long(integer) => integer as u64,
                Argument::Float(float) => float.to_bits() as u64,
                Argument::Rows(symbol, times) => extents.rows(symbol) as u64 * times as u64,
            };
        }
        // The first of those that are one parameter stands for them.
        for (pointer, value) in pointers.iter_mut().zip(&mut values).take(launch.single + 1) {
            *pointer = (&raw mut *value).cast();
        }
        let mut attribute =
            LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value: [0; 16] };
        attribute.value[0] = 1;
        let config = LaunchConfig {
            grid: launch.grid.map(|extent| extents.blocks(extent)),
            block: [launch.threads, 1, 1],
            shared: launch.shared,
            stream: self.stream,
            attributes: &attribute,
            count: u32::from(early && self.facts.capability >= 90),
        };
        let start = self.driver.launch;
        // SAFETY: the argument list has the kernel's parameters; a test compares them on an emulation of the kernels.
        let status = unsafe { start(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()) };
        self.check(status, &format!("launching {} with {:?}", launch.kernel, config.grid))
    }
}

/// Recordings, also those of which others have parts.
impl CudaDevice {
    /// Begins one of such launches.
    pub fn start_recording(&mut self, launches: &[Launch]) -> Result<(), BackendError> {
        self.begin()?;
        // What a first launch would do besides must not happen while recording.
        self.function("deliver", 0)?;
        for launch in launches {
            self.function(&launch.kernel, launch.shared)?;
        }
        self.finish()?;
        // Calls of other threads do not matter.
        // SAFETY: the stream is this device's.
        self.check(unsafe { (self.driver.begin_capture)(self.stream, 2) }, "recording")?;
        self.launch_delivery()
    }

    /// Records launches; the first waits for all that came before, and with it those that do not wait for themselves.
    pub fn go_on(&mut self, launches: &[Launch], extents: Extents) -> Result<(), BackendError> {
        self.enter()?;
        let mut all = launches.iter().enumerate();
        all.try_for_each(|(index, launch)| self.launch(launch, extents, index > 0))
    }

    /// Ends a recording, which is a unit if everything went well until then.
    pub fn end_recording(&mut self, launched: Result<(), BackendError>) -> Result<Recording, BackendError> {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        self.enter()?;
        // SAFETY: the stream is this device's; handles are of ours.
        unsafe {
            let status = (self.driver.end_capture)(self.stream, &mut graph);
            if let Err(error) = launched {
                if !graph.is_null() {
                    (self.driver.destroy_graph)(graph);
                }
                return Err(error);
            }
            self.check(status, "recording")?;
            let status = (self.driver.instantiate)(&mut executable, graph, 0);
            (self.driver.destroy_graph)(graph);
            self.check(status, "making a graph")?;
        }
        self.executables.push(executable);
        Ok(Recording(self.executables.len() - 1))
    }

    /// Its number in the driver.
    pub fn number(&self) -> DeviceNumber {
        self.facts.number
    }

    /// Its queue.
    pub fn stream(&self) -> Handle {
        self.stream
    }
}

/// What is exchanged with other devices.
impl CudaDevice {
    /// Makes an event of this device.
    pub fn event(&self) -> Result<Event, BackendError> {
        self.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle of ours.
        let status = unsafe { (self.driver.create_event)(&mut handle, WITHOUT_TIME) };
        self.check(status, "making an event")?;
        Ok(Event { driver: self.driver, handle })
    }

    /// The event is when all is done that was asked for until now.
    pub fn signal(&mut self, event: &Event) -> Result<(), BackendError> {
        self.begin()?;
        // SAFETY: event and stream are of this device.
        self.check(unsafe { (self.driver.record_event)(event.handle, self.stream) }, "recording an event")
    }

    /// What is asked for from now on comes after the event of another device.
    pub fn wait_for(&mut self, event: &Event) -> Result<(), BackendError> {
        self.enter()?;
        // SAFETY: both are there.
        let status = unsafe { (self.driver.wait_for_event)(self.stream, event.handle, 0) };
        self.check(status, "waiting for another device")
    }

    /// Lets kernels and copies of this device reach the other's memory directly, if the machine can do that.
    pub fn reach(&mut self, other: &Self) -> Result<(), BackendError> {
        let mut can = 0;
        if self.facts.number == other.facts.number {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: the pointer is to an integer of ours; both contexts are there.
        let status = unsafe {
            (self.driver.can_reach)(&mut can, self.facts.number, other.facts.number);
            if can == 0 { REACHED_ALREADY } else { (self.driver.let_reach)(other.context, 0) }
        };
        if status == REACHED_ALREADY { Ok(()) } else { self.check(status, "reaching the other's memory") }
    }

    /// Copies from another device; the ranges do not overlap.
    pub fn copy_from(
        &mut self,
        other: &Self,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), BackendError> {
        self.enter()?;
        let (source, destination) = (other.pointer(from, bytes)?, self.pointer(to, bytes)?);
        // SAFETY: both ranges lie in buffers of these contexts.
        let status = unsafe {
            let copy = self.driver.copy_to_peer;
            copy(destination, self.context, source, other.context, bytes as usize, self.stream)
        };
        self.check(status, "copying between devices")
    }
}

/// A point in a queue.
pub struct Event {
    driver: &'static Driver,
    handle: Handle,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more; a failure leaves nothing to do.
        unsafe { (self.driver.destroy_event)(self.handle) };
    }
}

/// Host memory that the device writes by itself.
struct HostFloats {
    driver: &'static Driver,
    context: Handle,
    number: DeviceNumber,
    pointer: *mut f32,
    count: usize,
}

// SAFETY: the memory is written only by the device that nobody else shares it with at that time, else read.
unsafe impl Send for HostFloats {}
// SAFETY: as above.
unsafe impl Sync for HostFloats {}

impl Drop for HostFloats {
    fn drop(&mut self) {
        // SAFETY: this is the last user, and the context was kept for it; failures leave nothing to do.
        unsafe {
            if (self.driver.set_context)(self.context) == 0 {
                (self.driver.free_host)(self.pointer.cast());
            }
            (self.driver.release_context)(self.number);
        }
    }
}

/// The first floats of such memory, lent.
struct LentFloats(Arc<HostFloats>, usize);

impl AsRef<[f32]> for LentFloats {
    fn as_ref(&self) -> &[f32] {
        // SAFETY: so many are there and were written; the device does not write where someone else holds the memory.
        unsafe { std::slice::from_raw_parts(self.0.pointer, self.1) }
    }
}

impl CudaDevice {
    /// Host memory with room for so many floats that nobody looks at, unless too much is looked at.
    fn unlent(&mut self, count: usize) -> Result<Option<Arc<HostFloats>>, BackendError> {
        // What is too small goes when nobody looks at it.
        self.lent.retain(|floats| floats.count >= count || Arc::strong_count(floats) > 1);
        let free = |floats: &&Arc<HostFloats>| floats.count >= count && Arc::strong_count(floats) == 1;
        if let Some(floats) = self.lent.iter().find(free) {
            return Ok(Some(floats.clone()));
        }
        if self.lent.len() >= MOST_LENT {
            return Ok(None);
        }
        let count = count.next_power_of_two();
        let (mut context, mut pointer) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: pointers are to handles of ours. The context is kept for as long as the memory.
        unsafe {
            self.check((self.driver.context)(&mut context, self.facts.number), "keeping the device open")?;
            let status = (self.driver.allocate_host)(&mut pointer, 4 * count, 0);
            if status != 0 {
                (self.driver.release_context)(self.facts.number);
                if status == OUT_OF_MEMORY {
                    return Ok(None);
                }
                self.check(status, "taking host memory")?;
            }
        }
        count_allocation();
        let number = self.facts.number;
        let floats = HostFloats { driver: self.driver, context, number, pointer: pointer.cast(), count };
        self.lent.push(Arc::new(floats));
        Ok(self.lent.last().cloned())
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.facts.name
    }

    fn processors(&self) -> u32 {
        self.facts.processors
    }

    fn matrix_units(&self) -> MatrixUnits {
        match self.facts.capability {
            // Only machine code for 9.0 has instructions for groups.
            90 => MatrixUnits::Group,
            80.. => MatrixUnits::Warp,
            _ => MatrixUnits::None,
        }
    }

    fn shared_bytes(&self) -> u32 {
        self.facts.shared_bytes
    }

    fn blocks_meet(&self) -> bool {
        self.matrix_units() == MatrixUnits::Group
    }

    fn free_memory(&mut self) -> Result<Option<u64>, BackendError> {
        self.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: the pointers are to integers of ours.
        let status = unsafe { (self.driver.free_memory)(&mut free, &mut all) };
        self.check(status, "asking for free memory")?;
        Ok(Some(free as u64))
    }

    fn allocate(&mut self, bytes: u64, purpose: &'static str) -> Result<BufferId, BackendError> {
        self.enter()?;
        let mut pointer = 0;
        // SAFETY: the pointer is to an address of ours.
        let status = unsafe { (self.driver.allocate)(&mut pointer, bytes as usize) };
        if status == OUT_OF_MEMORY {
            return Err(BackendError::OutOfMemory { device: self.facts.name.clone(), bytes, purpose });
        }
        self.check(status, &format!("taking {bytes} bytes for {purpose}"))?;
        count_allocation();
        self.buffers.push((pointer, bytes));
        Ok(BufferId(self.buffers.len() - 1))
    }

    fn clear(&mut self, at: Address, bytes: u64) -> Result<(), BackendError> {
        self.begin()?;
        let pointer = self.pointer(at, bytes)?;
        // SAFETY: the range lies in a buffer.
        let status = unsafe { (self.driver.clear)(pointer, 0, bytes as usize, self.stream) };
        self.check(status, "clearing memory")
    }

    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.enter()?;
        let pointer = self.pointer(at, bytes.len() as u64)?;
        if !self.mail_sent && self.mail.add(pointer, bytes) {
            return Ok(());
        }
        self.begin()?;
        // SAFETY: both ranges exist; the driver has taken pageable host memory in when it returns.
        let status = unsafe { (self.driver.write)(pointer, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        self.check(status, "copying to the device")
    }

    fn read(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.begin()?;
        let mut done = 0;
        while done < bytes.len() {
            let part = (bytes.len() - done).min(STAGING);
            let pointer = self.pointer(at.plus(done as u64), part as u64)?;
            // SAFETY: both ranges exist, and the copy has ended before the bytes are looked at.
            unsafe {
                let status = (self.driver.read)(self.staging.cast(), pointer, part, self.stream);
                self.check(status, "copying from the device")?;
                self.wait()?;
                std::ptr::copy_nonoverlapping(self.staging, bytes[done..].as_mut_ptr(), part);
            }
            done += part;
        }
        Ok(())
    }

    fn read_pieces(&mut self, pieces: &[(Address, usize)], mut bytes: &mut [u8]) -> Result<(), BackendError> {
        self.begin()?;
        let mut left = pieces;
        while let Some(((place, size), after)) = left.split_first() {
            if *size > STAGING {
                let (piece, rest) = bytes.split_at_mut(*size);
                self.read(*place, piece)?;
                (bytes, left) = (rest, after);
                continue;
            }
            let (mut taken, mut count) = (0, 0);
            while let Some((place, size)) = left.get(count).filter(|(_, size)| taken + size <= STAGING) {
                let pointer = self.pointer(*place, *size as u64)?;
                // SAFETY: both ranges exist, and the copies have ended before the bytes are looked at.
                let status = unsafe {
                    (self.driver.read)(self.staging.add(taken).cast(), pointer, *size, self.stream)
                };
                self.check(status, "copying from the device")?;
                (taken, count) = (taken + size, count + 1);
            }
            self.wait()?;
            let (piece, rest) = bytes.split_at_mut(taken);
            // SAFETY: the copies have ended.
            unsafe { std::ptr::copy_nonoverlapping(self.staging, piece.as_mut_ptr(), taken) };
            (bytes, left) = (rest, &left[count..]);
        }
        Ok(())
    }

    fn read_floats(&mut self, at: Address, count: usize) -> Result<Floats, BackendError> {
        self.begin()?;
        let pointer = self.pointer(at, 4 * count as u64)?;
        let Some(floats) = self.unlent(count)? else {
            let mut bytes = vec![0; 4 * count];
            self.read(at, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<4>();
            return Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>().into());
        };
        // SAFETY: the memory has room for so many, nobody looks at it, and the copy has ended before anybody does.
        unsafe {
            let status = (self.driver.read)(floats.pointer.cast(), pointer, 4 * count, self.stream);
            self.check(status, "copying from the device")?;
            self.wait()?;
        }
        Ok(Floats::Lent(Arc::new(LentFloats(floats, count))))
    }

    fn copy(&mut self, from: Address, to: Address, bytes: u64) -> Result<(), BackendError> {
        self.begin()?;
        let (source, destination) = (self.pointer(from, bytes)?, self.pointer(to, bytes)?);
        // SAFETY: both ranges lie in buffers.
        let status = unsafe { (self.driver.copy)(destination, source, bytes as usize, self.stream) };
        self.check(status, "copying on the device")
    }

    fn run(&mut self, launches: &[Launch], extents: Extents) -> Result<(), BackendError> {
        self.begin()?;
        launches.iter().try_for_each(|launch| self.launch(launch, extents, true))
    }

    fn record(&mut self, lists: &[&[Launch]], extents: Extents) -> Result<Recording, BackendError> {
        let launches = lists.first().copied().unwrap_or_default();
        let started = self.start_recording(launches);
        let launched = started.and_then(|()| self.go_on(launches, extents));
        self.end_recording(launched)
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        self.enter()?;
        let Some(executable) = self.executables.get(recording.0).copied() else {
            return Err(self.error("a graph that was not recorded".into()));
        };
        if self.mail_sent {
            // The graph before may not have read its mail yet.
            self.wait()?;
        }
        let words = self.mail.words();
        // SAFETY: there is room for so many words, and no graph reads them now.
        unsafe {
            std::ptr::copy_nonoverlapping(
                words.as_ptr().cast(),
                self.staging.add(STAGING),
                size_of_val(words),
            );
        }
        self.mail.clear();
        self.mail_sent = true;
        // SAFETY: the graph was made for this device.
        self.check(unsafe { (self.driver.launch_graph)(executable, self.stream) }, "running a graph")
    }

    fn finish(&mut self) -> Result<(), BackendError> {
        self.begin()?;
        self.wait()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // SAFETY: everything was made by this device and is used no more; failures leave nothing to do.
        unsafe {
            if self.context.is_null() || (self.driver.set_context)(self.context) != 0 {
                return;
            }
            if !self.stream.is_null() {
                (self.driver.synchronize)(self.stream);
            }
            for executable in &self.executables {
                (self.driver.destroy_executable)(*executable);
            }
            for (pointer, _) in &self.buffers {
                (self.driver.free)(*pointer);
            }
            for module in &self.modules {
                (self.driver.unload_module)(*module);
            }
            if !self.staging.is_null() {
                (self.driver.free_host)(self.staging.cast());
            }
            if !self.stream.is_null() {
                (self.driver.destroy_stream)(self.stream);
            }
            (self.driver.release_context)(self.facts.number);
        }
    }
}
