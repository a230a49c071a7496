//! Test support: right values and what is needed to compare with them. No product crate depends on it.
#![forbid(unsafe_code)]

mod adapter;
pub mod pairs;
mod quantised;
pub mod run;
pub mod steps;
pub mod zoo;

pub use adapter::write_adapter;
pub use quantised::{quantised, requantised};

/// Normalised squared error: the sum of squared differences over the sum of squared right values.
pub fn normalised_squared_error(found: &[f32], right: &[f32]) -> f64 {
    assert_eq!(found.len(), right.len(), "number of values");
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let error = square(&mut found.iter().zip(right).map(|(a, b)| *a as f64 - *b as f64));
    error / square(&mut right.iter().map(|b| *b as f64))
}
