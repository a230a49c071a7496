//! The program `llama`.
fn main() {}
