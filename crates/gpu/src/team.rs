//! Several devices as one: all of them run the same graph over the same memory, but each multiplies with its own rows of large
//! matrices, and then they give each other what they made.

use std::sync::Arc;

use puna_backend::BackendError;
use puna_graph::{Floats, Symbol};

use crate::{Address, Blocks, BufferId, Device, Division, Extents, Launch, MatrixUnits, Recording};

/// The way between members.
pub trait Link<M>: Send + Sized {
    /// Finds one.
    fn connect(members: &mut [M]) -> Result<Self, BackendError>;
    /// Fills the blocks of the other members on each member, when all that was asked for is done; `values` has the same ones for each
    /// member. What is asked for next comes after it.
    fn exchange(
        &mut self,
        members: &mut [M],
        values: &[&[Blocks]],
        extents: Extents,
    ) -> Result<(), BackendError>;
    /// Records the lists with their exchanges, a unit for each member; nothing if exchanges cannot be recorded.
    fn record(
        &mut self,
        _members: &mut [M],
        _lists: &[&[Launch]],
        _extents: Extents,
    ) -> Result<Option<Vec<Recording>>, BackendError> {
        Ok(None)
    }
}

/// Devices that are used as one.
pub struct Team<M, L> {
    name: String,
    /// In this order they are given up: recordings may know the link.
    members: Vec<M>,
    link: Option<L>,
    division: Division,
    /// Whether launches with blocks that wait for each other have each device for themselves.
    apart: bool,
    recordings: Vec<Recorded>,
}

/// A unit of kernels.
enum Recorded {
    /// Of each member.
    Units(Vec<Recording>),
    /// To be run like any other.
    Lists(Vec<Vec<Launch>>, Extents),
}

/// Launches up to an exchange.
pub struct Round<'a> {
    /// Of each member.
    pub launches: Vec<&'a [Launch]>,
    /// The values exchanged, as each member knows them; none after the last launches.
    pub values: Vec<&'a [Blocks]>,
}

/// Cuts lists of launches, one for each member, where members exchange values. Nothing if they do not do so at the same time.
pub fn rounds<'a>(lists: &[&'a [Launch]]) -> Option<Vec<Round<'a>>> {
    let mut rest = lists.to_vec();
    let mut rounds = Vec::new();
    while rest.iter().any(|list| !list.is_empty()) {
        let mut round = Round { launches: Vec::new(), values: Vec::new() };
        for list in &mut rest {
            let last = list.iter().position(|launch| !launch.exchanged.is_empty());
            let (now, later) = list.split_at(last.map_or(list.len(), |last| last + 1));
            round.launches.push(now);
            round.values.push(now.last().map_or(&[], |launch| launch.exchanged.as_slice()));
            *list = later;
        }
        let alike = |a: &Blocks, b: &Blocks| (a.rows, &a.firsts) == (b.rows, &b.firsts);
        let first = round.values.first().copied().unwrap_or(&[]);
        let together = |values: &&[Blocks]| {
            values.len() == first.len() && values.iter().zip(first).all(|(a, b)| alike(a, b))
        };
        let fits = |blocks: &Blocks| blocks.count() == lists.len();
        if !round.values.iter().all(together) || !first.iter().all(fits) {
            return None;
        }
        rounds.push(round);
    }
    Some(rounds)
}

impl<M: Device, L: Link<M>> Team<M, L> {
    /// Opens the devices of these indexes as one; `are_apart` says whether no two of them are the same card.
    pub fn open(
        name: &str,
        indexes: &[usize],
        division: &Division,
        open: impl Fn(usize) -> Result<M, BackendError>,
        are_apart: impl Fn(&[M]) -> bool,
    ) -> Result<Self, BackendError> {
        let members = indexes.iter().map(|index| open(*index)).collect::<Result<Vec<_>, _>>()?;
        let (name, apart) = (name.to_string(), are_apart(&members));
        Ok(Self { name, members, link: None, division: division.clone(), apart, recordings: Vec::new() })
    }

    fn error(&self, reason: &str) -> BackendError {
        BackendError::Device { device: self.name.clone(), reason: reason.to_string() }
    }

    /// The same on all members, which give the same number to what they made.
    fn all<T: PartialEq>(
        &mut self,
        mut act: impl FnMut(&mut M, usize) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let mut made = None;
        for (index, member) in self.members.iter_mut().enumerate() {
            let found = act(member, index)?;
            if made.as_ref().is_some_and(|made| *made != found) {
                return Err(self.error("its members are not in step"));
            }
            made = Some(found);
        }
        made.ok_or_else(|| self.error("it has no members"))
    }

    /// Connects the members when they have something to exchange for the first time, and sees whether numbers arrive.
    fn connect(&mut self, rounds: &[Round<'_>]) -> Result<(), BackendError> {
        if self.link.is_some()
            || rounds.iter().all(|round| round.values.iter().all(|values| values.is_empty()))
        {
            return Ok(());
        }
        let mut link = L::connect(&mut self.members)?;
        const COLUMNS: u32 = 1024;
        let count = self.members.len();
        let buffer = self.allocate(4 * u64::from(COLUMNS) * count as u64, "work space")?;
        let firsts: Arc<[u32]> = (0..=count as u32).map(|member| member * COLUMNS).collect();
        let address = Address { buffer, offset: 0 };
        let blocks = [Blocks { address, room: 1, rows: (Symbol::Tokens, 1), firsts }];
        let extents = Extents { tokens: 1, outputs: 1, spans: 1 };
        let number = |index: u32| (index.wrapping_mul(0x9e37_79b9) >> 8) as f32;
        let all: Vec<u8> =
            (0..COLUMNS * count as u32).flat_map(|index| number(index).to_le_bytes()).collect();
        for (index, member) in self.members.iter_mut().enumerate() {
            let own = blocks[0].range(index, extents);
            member.clear(address, all.len() as u64)?;
            member.write(address.plus(own.start), &all[own.start as usize..own.end as usize])?;
        }
        link.exchange(&mut self.members, &vec![&blocks[..]; count], extents)?;
        for member in &mut self.members {
            let mut found = vec![0; all.len()];
            member.read(address, &mut found)?;
            if found != all {
                let reason = "copies from card to card bring other numbers, so matrices cannot be divided (--split-mode layer does without)";
                return Err(BackendError::Device {
                    device: member.name().to_string(),
                    reason: reason.into(),
                });
            }
        }
        self.link = Some(link);
        Ok(())
    }
}

impl<M: Device, L: Link<M>> Device for Team<M, L> {
    fn name(&self) -> &str {
        &self.name
    }

    fn processors(&self) -> u32 {
        self.members.iter().map(Device::processors).min().unwrap_or(1)
    }

    fn matrix_units(&self) -> MatrixUnits {
        self.members.iter().map(Device::matrix_units).min().unwrap_or(MatrixUnits::None)
    }

    fn shared_bytes(&self) -> u32 {
        self.members.iter().map(Device::shared_bytes).min().unwrap_or(0)
    }

    fn blocks_meet(&self) -> bool {
        self.apart && self.members.iter().all(Device::blocks_meet)
    }

    fn division(&self) -> Division {
        self.division.clone()
    }

    fn free_memory(&mut self) -> Result<Option<u64>, BackendError> {
        let fullest = self.division.fullest;
        self.members.get_mut(fullest).map_or(Ok(None), Device::free_memory)
    }

    fn allocate(&mut self, bytes: u64, purpose: &'static str) -> Result<BufferId, BackendError> {
        self.all(|member, _| member.allocate(bytes, purpose))
    }

    fn allocate_each(&mut self, bytes: &[u64], purpose: &'static str) -> Result<BufferId, BackendError> {
        self.all(|member, index| member.allocate(bytes.get(index).copied().unwrap_or(0).max(16), purpose))
    }

    fn clear(&mut self, at: Address, bytes: u64) -> Result<(), BackendError> {
        self.all(|member, _| member.clear(at, bytes))
    }

    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.all(|member, _| member.write(at, bytes))
    }

    fn write_to(&mut self, member: usize, at: Address, bytes: &[u8]) -> Result<(), BackendError> {
        match self.members.get_mut(member) {
            Some(member) => member.write(at, bytes),
            None => Err(self.error("a member that is not there")),
        }
    }

    fn read(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.members.first_mut().map_or(Ok(()), |member| member.read(at, bytes))
    }

    fn read_floats(&mut self, at: Address, count: usize) -> Result<Floats, BackendError> {
        match self.members.first_mut() {
            Some(member) => member.read_floats(at, count),
            None => Err(self.error("it has no members")),
        }
    }

    fn copy(&mut self, from: Address, to: Address, bytes: u64) -> Result<(), BackendError> {
        self.all(|member, _| member.copy(from, to, bytes))
    }

    fn run(&mut self, launches: &[Launch], extents: Extents) -> Result<(), BackendError> {
        self.all(|member, _| member.run(launches, extents))
    }

    fn run_each(&mut self, lists: &[&[Launch]], extents: Extents) -> Result<(), BackendError> {
        let Some(rounds) = rounds(lists) else { return Err(self.error("its members are not in step")) };
        self.connect(&rounds)?;
        for round in &rounds {
            for (member, launches) in self.members.iter_mut().zip(&round.launches) {
                member.run(launches, extents)?;
            }
            let exchanges = round.values.iter().any(|values| !values.is_empty());
            if let (Some(link), true) = (&mut self.link, exchanges) {
                link.exchange(&mut self.members, &round.values, extents)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, lists: &[&[Launch]], extents: Extents) -> Result<Recording, BackendError> {
        let Some(rounds) = rounds(lists) else { return Err(self.error("its members are not in step")) };
        self.connect(&rounds)?;
        let units = match &mut self.link {
            Some(link) => link.record(&mut self.members, lists, extents)?,
            None => {
                let each = self.members.iter_mut().zip(lists);
                Some(each.map(|(member, list)| member.record(&[list], extents)).collect::<Result<_, _>>()?)
            }
        };
        self.recordings.push(match units {
            Some(units) => Recorded::Units(units),
            None => Recorded::Lists(lists.iter().map(|list| list.to_vec()).collect(), extents),
        });
        Ok(Recording(self.recordings.len() - 1))
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        let recordings = std::mem::take(&mut self.recordings);
        let result = match recordings.get(recording.0) {
            Some(Recorded::Units(units)) => {
                let mut each = self.members.iter_mut().zip(units);
                each.try_for_each(|(member, unit)| member.replay(*unit))
            }
            Some(Recorded::Lists(lists, extents)) => {
                let lists: Vec<&[Launch]> = lists.iter().map(Vec::as_slice).collect();
                self.run_each(&lists, *extents)
            }
            None => Err(self.error("a unit that was not recorded")),
        };
        self.recordings = recordings;
        result
    }

    fn finish(&mut self) -> Result<(), BackendError> {
        self.all(|member, _| member.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extent;

    fn launch(kernel: &str, firsts: &[u32]) -> Launch {
        let address = Address { buffer: BufferId(0), offset: 0 };
        let blocks = Blocks { address, room: 2, rows: (Symbol::Tokens, 1), firsts: firsts.into() };
        Launch {
            kernel: kernel.into(),
            grid: [Extent::Fixed(1); 3],
            threads: 32,
            shared: 0,
            arguments: Vec::new(),
            single: 0,
            exchanged: if firsts.is_empty() { Vec::new() } else { vec![blocks] },
        }
    }

    #[test]
    fn lists_are_cut_after_what_is_exchanged() {
        let [a, b, c] = [launch("a", &[]), launch("b", &[0, 16, 48]), launch("c", &[])];
        let lists = [vec![a.clone(), b.clone(), c.clone()], vec![b.clone(), c.clone(), a.clone()]];
        let rounds = rounds(&[&lists[0], &lists[1]]).expect("they are in step");
        let kernels = |round: usize, member: usize| {
            rounds[round].launches[member].iter().map(|launch| launch.kernel.as_str()).collect::<String>()
        };
        assert_eq!(rounds.len(), 2);
        assert_eq!([kernels(0, 0), kernels(0, 1), kernels(1, 0), kernels(1, 1)], ["ab", "b", "c", "ca"]);
        assert_eq!(rounds[0].values, [&b.exchanged[..], &b.exchanged]);
        assert!(rounds[1].values.iter().all(|values| values.is_empty()));
    }

    #[test]
    fn members_that_exchange_other_values_are_not_in_step() {
        let (one, other) = ([launch("a", &[0, 16, 48])], [launch("a", &[0, 32, 48])]);
        assert!(rounds(&[&one, &other]).is_none());
        assert!(rounds(&[&one, &[launch("a", &[])]]).is_none());
        // Blocks of two members, for three.
        assert!(rounds(&[&one, &one, &one]).is_none());
        assert!(rounds(&[&one, &one]).is_some());
    }

    #[test]
    fn blocks_lie_in_the_order_of_members() {
        let blocks = &launch("a", &[0, 16, 48]).exchanged[0];
        let extents = Extents { tokens: 1, outputs: 1, spans: 1 };
        // There is room for two rows.
        assert_eq!([blocks.range(0, extents), blocks.range(1, extents)], [0..64, 128..256]);
        assert_eq!(blocks.count(), 2);
    }
}
