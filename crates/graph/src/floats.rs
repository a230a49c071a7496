//! Numbers that an array owns, or that lie in memory of whoever computed them.

use std::ops::Deref;
use std::sync::Arc;

/// Memory that is lent for as long as someone looks at it.
pub type Lender = dyn AsRef<[f32]> + Send + Sync;

/// Floats: a slice to read.
#[derive(Clone)]
pub enum Floats {
    /// A vector.
    Own(Vec<f32>),
    /// Someone else's memory, which is used again when the last clone is dropped.
    Lent(Arc<Lender>),
}

impl Floats {
    /// The floats as a vector; lent ones are copied.
    pub fn into_vec(self) -> Vec<f32> {
        match self {
            Self::Own(floats) => floats,
            Self::Lent(lender) => (*lender).as_ref().to_vec(),
        }
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Own(floats) => floats,
            Self::Lent(lender) => (**lender).as_ref(),
        }
    }
}

impl Default for Floats {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl From<Vec<f32>> for Floats {
    fn from(floats: Vec<f32>) -> Self {
        Self::Own(floats)
    }
}

impl Extend<f32> for Floats {
    fn extend<I: IntoIterator<Item = f32>>(&mut self, more: I) {
        let mut floats = std::mem::take(self).into_vec();
        floats.extend(more);
        *self = Self::Own(floats);
    }
}

impl PartialEq for Floats {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for Floats {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_floats_are_read_in_place_and_copied_to_be_changed() {
        let lender: Arc<Lender> = Arc::new(vec![1.0, 2.0]);
        let mut floats = Floats::Lent(lender.clone());
        assert_eq!((floats[1], Arc::strong_count(&lender)), (2.0, 2));
        floats.extend([3.0]);
        assert_eq!((&floats[..], Arc::strong_count(&lender)), (&[1.0, 2.0, 3.0][..], 1));
        assert_eq!(Floats::Lent(lender).into_vec(), [1.0, 2.0]);
    }
}
