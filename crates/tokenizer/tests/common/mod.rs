//! Finding the large fixtures, which are not part of the project.

use std::path::{Path, PathBuf};

use puna_tokenizer::Tokenizer;

/// A path below `shared/fixtures` beside the project or one of the folders above it; prints why if there is none.
pub fn shared(path: &str) -> Option<PathBuf> {
    above(&format!("shared/fixtures/{path}"))
}

/// A path below one of the folders above this crate; prints why if there is none.
pub fn above(path: &str) -> Option<PathBuf> {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let found = folders.map(|folder| folder.join(path)).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: {path} is in no folder above the project");
    }
    found
}

/// The tokenizer of a GGUF file.
pub fn load_file(path: &Path) -> Tokenizer {
    let file = puna_gguf::File::open(path, &puna_gguf::OpenOptions::default()).unwrap();
    Tokenizer::from_metadata(&file.metadata).unwrap().expect("the file has a tokenizer")
}
