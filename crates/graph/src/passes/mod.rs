//! Rewrites of a graph that need no device.

mod output_rows;

pub use output_rows::move_output_rows_up;
