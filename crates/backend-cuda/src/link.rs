//! How cards that divide matrices exchange what they made: by NCCL, or by copies where that is not installed or where one card plays
//! several.

use puna_backend::BackendError;
use puna_gpu::{Blocks, Device, Extents, Launch, Link, Recording, rounds};

use crate::device::{CudaDevice, Event};
use crate::nccl::{Communicator, Nccl};

/// See the module.
pub enum CudaLink {
    /// By the library.
    Nccl(Ring),
    /// By copies: when each member has made its share, and when it has those of the others.
    Copies(Vec<[Event; 2]>),
}

/// Cards that the library connects.
pub struct Ring {
    nccl: &'static Nccl,
    communicators: Vec<Communicator>,
}

// SAFETY: communicators may be used from any thread, one at a time.
unsafe impl Send for Ring {}

impl Drop for Ring {
    fn drop(&mut self) {
        self.communicators.iter().for_each(|communicator| self.nccl.disconnect(*communicator));
    }
}

/// Whether no two members are the same card.
pub fn are_apart(members: &[CudaDevice]) -> bool {
    let mut numbers: Vec<_> = members.iter().map(CudaDevice::number).collect();
    numbers.sort_unstable();
    numbers.windows(2).all(|pair| pair[0] != pair[1])
}

fn refuse(member: &CudaDevice, reason: String) -> BackendError {
    BackendError::Device { device: member.name().to_string(), reason: format!("NCCL: {reason}") }
}

impl Ring {
    fn exchange(
        &self,
        members: &[CudaDevice],
        values: &[&[Blocks]],
        extents: Extents,
    ) -> Result<(), BackendError> {
        let Some(first) = members.first() else { return Ok(()) };
        let mut places = Vec::new();
        for (index, (member, values)) in members.iter().zip(values).enumerate() {
            for blocks in *values {
                let ranges: Vec<_> = (0..blocks.count()).map(|block| blocks.range(block, extents)).collect();
                let end = ranges.last().map_or(0, |range| range.end);
                places.push((index, member.pointer(blocks.address, end)?, ranges));
            }
        }
        let exchanged = self.nccl.together(|| {
            for (index, start, ranges) in &places {
                let (communicator, queue) = (self.communicators[*index], members[*index].stream());
                let bytes = ranges[0].end - ranges[0].start;
                let alike = ranges
                    .iter()
                    .zip(0..)
                    .all(|(range, block)| range.start == block * bytes && range.end == range.start + bytes);
                if alike {
                    // SAFETY: the range was looked at, and communicators are in the order of the members.
                    unsafe { self.nccl.gather(*start, *index as u64, bytes, communicator, queue)? };
                    continue;
                }
                for (owner, range) in ranges.iter().enumerate() {
                    let bytes = range.end - range.start;
                    // SAFETY: the same.
                    unsafe { self.nccl.broadcast(start + range.start, bytes, owner, communicator, queue)? };
                }
            }
            Ok(())
        });
        exchanged.map_err(|reason| refuse(first, reason))
    }
}

/// Fills blocks by copies: each member fetches what it lacks when all have made theirs, and goes on when all have fetched.
fn copy(
    events: &[[Event; 2]],
    members: &mut [CudaDevice],
    values: &[&[Blocks]],
    extents: Extents,
) -> Result<(), BackendError> {
    let all_wait = |members: &mut [CudaDevice], which: usize| {
        for (member, events) in members.iter_mut().zip(events) {
            member.signal(&events[which])?;
        }
        for (index, member) in members.iter_mut().enumerate() {
            for (_, events) in events.iter().enumerate().filter(|(other, _)| *other != index) {
                member.wait_for(&events[which])?;
            }
        }
        Ok::<(), BackendError>(())
    };
    all_wait(members, 0)?;
    for (to, values_there) in values.iter().enumerate() {
        for (from, values_here) in values.iter().enumerate().filter(|(from, _)| *from != to) {
            for (here, there) in values_here.iter().zip(*values_there) {
                let range = here.range(from, extents);
                let (source, destination) = (here.address.plus(range.start), there.address.plus(range.start));
                let bytes = range.end - range.start;
                if bytes > 0
                    && let Ok([from, to]) = members.get_disjoint_mut([from, to])
                {
                    to.copy_from(from, source, destination, bytes)?;
                }
            }
        }
    }
    all_wait(members, 1)
}

impl Link<CudaDevice> for CudaLink {
    fn connect(members: &mut [CudaDevice]) -> Result<Self, BackendError> {
        if let (true, Some(nccl)) = (are_apart(members), Nccl::get()) {
            let cards: Vec<i32> = members.iter().map(CudaDevice::number).collect();
            let communicators = nccl.connect(&cards).map_err(|reason| match members.first() {
                Some(member) => refuse(member, reason),
                None => BackendError::Device { device: "CUDA".into(), reason },
            })?;
            return Ok(Self::Nccl(Ring { nccl, communicators }));
        }
        for to in 0..members.len() {
            for from in 0..members.len() {
                if let Ok([to, from]) = members.get_disjoint_mut([to, from]) {
                    to.reach(from)?;
                }
            }
        }
        let events = members.iter().map(|member| Ok([member.event()?, member.event()?]));
        Ok(Self::Copies(events.collect::<Result<_, BackendError>>()?))
    }

    fn exchange(
        &mut self,
        members: &mut [CudaDevice],
        values: &[&[Blocks]],
        extents: Extents,
    ) -> Result<(), BackendError> {
        match self {
            Self::Nccl(ring) => ring.exchange(members, values, extents),
            Self::Copies(events) => copy(events, members, values, extents),
        }
    }

    fn record(
        &mut self,
        members: &mut [CudaDevice],
        lists: &[&[Launch]],
        extents: Extents,
    ) -> Result<Option<Vec<Recording>>, BackendError> {
        let (Self::Nccl(ring), Some(rounds)) = (self, rounds(lists)) else { return Ok(None) };
        let mut result = Ok(());
        for (member, list) in members.iter_mut().zip(lists) {
            result = result.and_then(|()| member.start_recording(list));
        }
        for round in &rounds {
            for (member, launches) in members.iter_mut().zip(&round.launches) {
                result = result.and_then(|()| member.go_on(launches, extents));
            }
            if round.values.iter().any(|values| !values.is_empty()) {
                result = result.and_then(|()| ring.exchange(members, &round.values, extents));
            }
        }
        let failed = result.err().map(|error| error.to_string());
        let ended = members.iter_mut().map(|member| {
            let before = match &failed {
                Some(reason) => {
                    Err(BackendError::Device { device: member.name().to_string(), reason: reason.clone() })
                }
                None => Ok(()),
            };
            member.end_recording(before)
        });
        // Every recording is ended, also when one failed.
        let ended: Vec<Result<Recording, BackendError>> = ended.collect();
        ended.into_iter().collect::<Result<Vec<_>, _>>().map(Some)
    }
}
