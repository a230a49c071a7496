//! Rewrites the pages of `docs/` that are made from tables.
#![forbid(unsafe_code)]

use xtask::{files::root, pages};

fn main() -> std::io::Result<()> {
    std::fs::write(root().join(pages::FLAGS_PAGE), pages::flags_page())
}
