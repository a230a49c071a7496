//! The embedded images are those of the sources.

use std::path::Path;

use sha2::{Digest, Sha256};

/// Most bytes that all images may have.
const MOST_BYTES: usize = 25 << 20;

#[test]
fn images_are_made_from_the_sources() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kernels = crate_folder.join("kernels");
    let names = |extension: &str| {
        let mut names: Vec<_> = std::fs::read_dir(&kernels)
            .expect("the kernels")
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == extension))
            .collect();
        names.sort();
        names
    };
    let read = |path: &Path| std::fs::read(path).expect("a file");
    let headers: Vec<u8> = names("cuh").iter().flat_map(|path| read(path)).collect();
    let sources = names("cu");
    let listed: Vec<&str> = puna_backend_cuda::IMAGES.iter().map(|(name, _)| *name).collect();
    let found: Vec<String> =
        sources.iter().map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    assert_eq!(listed, found, "images.rs lists every source");
    let mut bytes = 0;
    for (path, (name, image)) in sources.iter().zip(puna_backend_cuda::IMAGES) {
        let mut digest = Sha256::new();
        digest.update(&headers);
        digest.update(read(path));
        digest.update(read(&crate_folder.join("compile.sh")));
        let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let recorded = read(&kernels.join(format!("compiled/{name}.digest")));
        assert_eq!(String::from_utf8_lossy(&recorded).trim(), digest, "compile.sh must run: {name}");
        bytes += image.len();
    }
    assert!(bytes <= MOST_BYTES, "{bytes} bytes of images");
}
