//! Extents that several tensors share and no key gives for certain: the file's tensors are asked, so that an error names the one
//! that is wrong.

use super::{Builder, MOST_WIDTH, ModelError, Result};

/// What a tensor says about an extent.
pub struct Claim {
    tensor: String,
    extent: u32,
}

impl Builder<'_> {
    /// What a tensor of the current layer says by one of its axes, 0 for the last; an axis that files need not write has one element.
    /// Nothing if it is not there or no tensor of a model.
    pub fn said_by(&self, name: &str, axis: usize) -> Option<Claim> {
        self.said_globally(&self.full_name(name), axis)
    }

    /// [`Builder::said_by`] of a tensor that belongs to no layer.
    pub fn said_globally(&self, name: &str, axis: usize) -> Option<Claim> {
        let extent = self.file_shape(name)?.iter().rev().nth(axis).copied().unwrap_or(1);
        let extent = u32::try_from(extent).ok().filter(|extent| (1..=MOST_WIDTH).contains(extent))?;
        Some(Claim { tensor: name.to_string(), extent })
    }

    /// Whether a matrix of the current layer has so many rows.
    pub fn has_rows(&self, name: &str, rows: u32) -> bool {
        self.said_by(name, 1).is_some_and(|claim| claim.extent == rows)
    }

    /// The extent on which most agree: what a key says, if there is one, and tensors. Of equally many the key is right; tensors
    /// alone that contradict each other are an error that names two. 0 if nothing is said: then what is looked up is missing.
    pub fn agreed(&self, key: Option<u32>, said: impl IntoIterator<Item = Option<Claim>>) -> Result<u32> {
        let said: Vec<Claim> = said.into_iter().flatten().collect();
        let extents = || key.into_iter().chain(said.iter().map(|claim| claim.extent));
        let votes = |extent: u32| extents().filter(|other| *other == extent).count();
        let most = extents().map(votes).max().unwrap_or(0);
        let mut favourites = extents().filter(|extent| votes(*extent) == most);
        let Some(first) = favourites.next() else { return Ok(0) };
        if key == Some(first) {
            return Ok(first);
        }
        let other = favourites.find(|extent| *extent != first);
        let tensor = |extent: u32| said.iter().find(|claim| claim.extent == extent);
        match (tensor(first), other.and_then(tensor)) {
            (Some(first), Some(second)) => Err(ModelError::TensorsDisagree {
                first: first.tensor.clone(),
                first_shape: self.file_shape(&first.tensor).unwrap_or_default().to_vec(),
                second: second.tensor.clone(),
                second_shape: self.file_shape(&second.tensor).unwrap_or_default().to_vec(),
            }),
            _ => Ok(first),
        }
    }
}

impl Claim {
    /// The extent itself.
    pub fn extent(self) -> u32 {
        self.extent
    }

    /// The same less so many elements that belong to something else; none if there are no more.
    pub fn beyond(self, elements: u32) -> Option<Self> {
        let extent = self.extent.checked_sub(elements).filter(|extent| *extent > 0)?;
        Some(Self { extent, ..self })
    }

    /// Half of it; none of an odd number.
    pub fn half(self) -> Option<Self> {
        self.extent.is_multiple_of(2).then_some(Self { extent: self.extent / 2, ..self })
    }
}
