//! Rewrites of a graph that need no device.

pub mod additions;
mod output_rows;

pub use output_rows::move_output_rows_up;
