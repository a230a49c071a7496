//! How the rows of matrices are divided over several devices that are used as one.

use std::sync::Arc;

use puna_backend::{BackendError, DeviceInfo, DeviceKind};

use crate::layout::TILE;
use crate::{Api, Device};

/// The members' shares.
#[derive(Clone, PartialEq, Debug)]
pub struct Division {
    /// One for each member, in any unit, all above 0.
    pub shares: Vec<f32>,
    /// The member whose memory will be full first.
    pub fullest: usize,
    /// Matrices of fewer bytes are on every member as a whole.
    pub least_bytes: u64,
}

impl Default for Division {
    /// A single member, which has everything.
    fn default() -> Self {
        Self { shares: vec![1.0], fullest: 0, least_bytes: 0 }
    }
}

impl Division {
    /// For members with such shares, and so many bytes free, where that is known.
    pub fn new(shares: Vec<f32>, free: &[Option<u64>], least_bytes: u64) -> Self {
        let room = |member: &usize| match free.get(*member) {
            Some(Some(bytes)) => *bytes as f64 / f64::from(shares[*member]),
            _ => 1.0 / f64::from(shares[*member]),
        };
        let fullest = (0..shares.len()).min_by(|a, b| {
            let smaller = free.get(*a).cmp(&free.get(*b));
            room(a).total_cmp(&room(b)).then(smaller)
        });
        Self { fullest: fullest.unwrap_or(0), shares, least_bytes }
    }

    /// The first row of each member, and the end of the last one's, of a matrix with so many rows and bytes. All begin at whole tiles.
    /// Nothing if each member has the whole matrix.
    pub fn of_rows(&self, rows: u32, bytes: u64) -> Option<Arc<[u32]>> {
        let members = self.shares.len() as u32;
        let tiles = rows.div_ceil(TILE as u32);
        if members < 2 || tiles < members || bytes < self.least_bytes {
            return None;
        }
        let sum: f64 = self.shares.iter().map(|share| f64::from(*share)).sum();
        let (mut firsts, mut before) = (vec![0], 0.0);
        for (member, share) in (1..).zip(&self.shares) {
            before += f64::from(*share);
            let wanted = (before / sum * f64::from(rows) / TILE as f64).round() as u32;
            // Each member gets a tile, also the last ones, and the last one gets what is left.
            let last = firsts[firsts.len() - 1] / TILE as u32;
            let end = match members - member {
                0 => tiles,
                others => wanted.clamp(last + 1, tiles - others),
            };
            firsts.push((end * TILE as u32).min(rows));
        }
        Some(firsts.into())
    }
}

/// Devices of an API as one device.
pub struct Divided {
    api: Arc<dyn Api>,
    indexes: Vec<usize>,
    division: Division,
    info: DeviceInfo,
}

impl Divided {
    /// These devices of the API.
    pub fn new(api: Arc<dyn Api>, indexes: Vec<usize>, division: Division) -> Self {
        let devices = api.devices();
        let members = || indexes.iter().filter_map(|index| devices.get(*index));
        let names: Vec<&str> = members().map(|device| device.name.as_str()).collect();
        let info = DeviceInfo {
            name: names.join("+"),
            description: format!("{}, each with its share of the rows of matrices", names.join(" and ")),
            kind: DeviceKind::Gpu,
            memory: members().map(|device| device.memory).sum(),
        };
        Self { api, indexes, division, info }
    }
}

impl Api for Divided {
    fn name(&self) -> &'static str {
        self.api.name()
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![self.info.clone()]
    }

    fn open(&self, _: usize) -> Result<Box<dyn Device>, BackendError> {
        self.api.open_divided(&self.info.name, &self.indexes, &self.division)
    }

    fn open_divided(&self, name: &str, _: &[usize], _: &Division) -> Result<Box<dyn Device>, BackendError> {
        Err(BackendError::Device { device: name.to_string(), reason: "it is divided already".into() })
    }

    fn division(&self) -> Division {
        self.division.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares, rows, and the first rows of members with the end.
    type Rows<'a> = (&'a [f32], u32, Option<&'a [u32]>);
    /// Shares, bytes that are free, and which member is full first.
    type Room<'a> = (&'a [f32], &'a [Option<u64>], usize);

    #[test]
    fn rows_follow_the_shares_in_whole_tiles() {
        let of = |shares: &[f32], rows: u32| {
            let division = Division::new(shares.to_vec(), &[], 0);
            division.of_rows(rows, 1).map(|firsts| firsts.to_vec())
        };
        let cases: &[Rows<'_>] = &[
            (&[1.0], 4096, None),
            (&[1.0, 1.0], 4096, Some(&[0, 2048, 4096])),
            (&[1.0, 3.0], 4096, Some(&[0, 1024, 4096])),
            (&[3.0, 5.0, 2.0], 100, Some(&[0, 32, 80, 100])),
            // The last tile is not whole.
            (&[1.0, 1.0], 33, Some(&[0, 16, 33])),
            (&[1.0, 1.0], 32, Some(&[0, 16, 32])),
            // Everybody gets something, or everything.
            (&[1.0, 1000.0], 64, Some(&[0, 16, 64])),
            (&[1000.0, 1.0, 1.0], 48, Some(&[0, 16, 32, 48])),
            (&[1.0, 1.0, 1.0], 32, None),
            (&[1.0, 1.0], 16, None),
        ];
        for (shares, rows, expected) in cases {
            assert_eq!(of(shares, *rows).as_deref(), *expected, "{shares:?} of {rows}");
        }
    }

    #[test]
    fn small_matrices_are_whole() {
        let division = Division::new(vec![1.0, 1.0], &[], 1 << 20);
        assert_eq!(division.of_rows(4096, (1 << 20) - 1), None);
        assert!(division.of_rows(4096, 1 << 20).is_some());
    }

    #[test]
    fn the_fullest_member_has_the_least_room_for_its_share() {
        let cases: &[Room<'_>] = &[
            (&[1.0, 1.0], &[Some(24), Some(12)], 1),
            (&[24.0, 12.0], &[Some(24), Some(12)], 1),
            (&[1.0, 3.0], &[Some(24), Some(24)], 1),
            (&[3.0, 1.0], &[None, None], 0),
        ];
        for (shares, free, expected) in cases {
            assert_eq!(Division::new(shares.to_vec(), free, 0).fullest, *expected, "{shares:?} {free:?}");
        }
    }
}
