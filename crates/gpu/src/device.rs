//! What an API must offer: memory, copies in order, kernels.

use std::sync::atomic::{AtomicU64, Ordering};

use puna_backend::{BackendError, DeviceInfo};
use puna_graph::Floats;

use crate::{Address, BufferId, Division, Extents, Launch};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// How often memory was taken, on devices and on the host for their copies, since the program began.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Devices call this when they take memory.
pub fn count_allocation() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

/// One device with a queue of its own: everything happens in the order of the calls.
pub trait Device: Send {
    /// Name as given to `--device`.
    fn name(&self) -> &str;
    /// Blocks that run at the same time and do not share a processor.
    fn processors(&self) -> u32;
    /// Its matrix units for half precision.
    fn matrix_units(&self) -> MatrixUnits;
    /// Bytes of shared memory that a block may have.
    fn shared_bytes(&self) -> u32;
    /// Whether the blocks of a launch, one for each processor, may wait for each other.
    fn blocks_meet(&self) -> bool {
        false
    }
    /// How it divides matrices over its members, if it is several devices. Members have the same memory under the same numbers;
    /// what is asked of the device is done by each of them, and the first one answers.
    fn division(&self) -> Division {
        Division::default()
    }
    /// Bytes of memory that are free, of several members on the one that will be full first, if that is known.
    fn free_memory(&mut self) -> Result<Option<u64>, BackendError> {
        Ok(None)
    }
    /// Takes memory; its contents are anything.
    fn allocate(&mut self, bytes: u64, purpose: &'static str) -> Result<BufferId, BackendError>;
    /// Takes memory of another size on each member.
    fn allocate_each(&mut self, bytes: &[u64], purpose: &'static str) -> Result<BufferId, BackendError> {
        self.allocate(bytes.first().copied().unwrap_or(0), purpose)
    }
    /// Writes zeros.
    fn clear(&mut self, at: Address, bytes: u64) -> Result<(), BackendError>;
    /// Copies to the device; `bytes` may change as soon as it returns.
    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), BackendError>;
    /// Copies to one member.
    fn write_to(&mut self, _member: usize, at: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.write(at, bytes)
    }
    /// Waits for all that was asked for and copies to the host.
    fn read(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), BackendError>;
    /// Waits for all that was asked for and copies pieces, so many bytes from each place, to the host, one after the other. Devices whose
    /// copies take long to begin ask for many at once.
    fn read_pieces(&mut self, pieces: &[(Address, usize)], mut bytes: &mut [u8]) -> Result<(), BackendError> {
        for (place, size) in pieces {
            let (piece, rest) = bytes.split_at_mut(*size);
            self.read(*place, piece)?;
            bytes = rest;
        }
        Ok(())
    }
    /// Waits for all that was asked for and copies floats to the host, perhaps to memory that it lends.
    fn read_floats(&mut self, at: Address, count: usize) -> Result<Floats, BackendError> {
        let mut bytes = vec![0; 4 * count];
        self.read(at, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>().into())
    }
    /// Copies within the device; the ranges do not overlap.
    fn copy(&mut self, from: Address, to: Address, bytes: u64) -> Result<(), BackendError>;
    /// Runs kernels, each after the one before it.
    fn run(&mut self, launches: &[Launch], extents: Extents) -> Result<(), BackendError>;
    /// Runs kernels, a list for each member, with the exchanges between them.
    fn run_each(&mut self, lists: &[&[Launch]], extents: Extents) -> Result<(), BackendError> {
        lists.iter().try_for_each(|launches| self.run(launches, extents))
    }
    /// Makes one unit of kernels, a list for each member, to be run often with the same extents.
    fn record(&mut self, lists: &[&[Launch]], extents: Extents) -> Result<Recording, BackendError>;
    /// Runs such a unit.
    fn replay(&mut self, recording: Recording) -> Result<(), BackendError>;
    /// Waits for all that was asked for.
    fn finish(&mut self) -> Result<(), BackendError>;
}

/// Matrix units for half precision, in ascending order of what they can do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MatrixUnits {
    /// There are none.
    None,
    /// Each warp has its own.
    Warp,
    /// Four warps also share larger ones, which read one side from shared memory.
    Group,
}

/// A recorded unit of kernels, by the number that the device gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recording(pub usize);

/// An API with its devices.
pub trait Api: Send + Sync {
    /// Short name, for example `CUDA`.
    fn name(&self) -> &'static str;
    /// What there is.
    fn devices(&self) -> Vec<DeviceInfo>;
    /// Opens a device of the list with a queue of its own.
    fn open(&self, index: usize) -> Result<Box<dyn Device>, BackendError>;
    /// Opens several devices of the list as one. The same one may be there several times.
    fn open_divided(
        &self,
        name: &str,
        indexes: &[usize],
        division: &Division,
    ) -> Result<Box<dyn Device>, BackendError>;
    /// How the devices divide matrices, if they are several devices each.
    fn division(&self) -> Division {
        Division::default()
    }
}
