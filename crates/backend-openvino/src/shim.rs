//! The small library of ours that adds what OpenVINO's C interface lacks.

use std::path::{Path, PathBuf};

use crate::ffi::Shim;
use crate::settings::Lookup;

/// File name of the shim.
const NAME: &str = if cfg!(windows) {
    "puna_openvino.dll"
} else if cfg!(target_os = "macos") {
    "libpuna_openvino.dylib"
} else {
    "libpuna_openvino.so"
};

/// Finds and opens the shim: where `PUNA_OPENVINO_SHIM` says, beside the program, beside OpenVINO. It must be built for
/// this version of OpenVINO. An error says why there is none; `PUNA_OPENVINO_SHIM=0` leaves it out without one.
pub(crate) fn open(lookup: Lookup<'_>, library: &Path, version: &str) -> Result<Option<Shim>, String> {
    let named = lookup("PUNA_OPENVINO_SHIM").filter(|path| !path.is_empty()).map(PathBuf::from);
    if named.as_ref().is_some_and(|path| path.as_os_str() == "0") {
        return Ok(None);
    }
    if let Some(path) = named {
        return match path.is_file() {
            true => Shim::open(&path, version).map(Some),
            false => Err(format!("PUNA_OPENVINO_SHIM={}: there is no such file", path.display())),
        };
    }
    let program = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let beside = [program.as_deref(), Some(library)];
    let mut beside =
        beside.into_iter().flatten().filter_map(|path| path.parent()).map(|folder| folder.join(NAME));
    match beside.find(|path| path.is_file()) {
        Some(path) => Shim::open(&path, version).map(Some),
        None => Err(format!("{NAME} is neither beside the program nor beside {}", library.display())),
    }
}
