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
/// this version of OpenVINO. The second value says why one that was found is not used.
pub(crate) fn open(lookup: Lookup<'_>, library: &Path, version: &str) -> (Option<Shim>, Option<String>) {
    let named = lookup("PUNA_OPENVINO_SHIM").map(PathBuf::from);
    if named.as_ref().is_some_and(|path| path.as_os_str() == "0") {
        return (None, None);
    }
    let program = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let beside = [program.as_deref(), Some(library)];
    let beside =
        beside.into_iter().flatten().filter_map(|path| path.parent()).map(|folder| folder.join(NAME));
    let Some(path) = named.into_iter().chain(beside).find(|path| path.is_file()) else { return (None, None) };
    match Shim::open(&path) {
        Ok(shim) if version.starts_with(&shim.version) => (Some(shim), None),
        Ok(shim) => {
            let built = &shim.version;
            let reason = format!("{} is for OpenVINO {built}, not {version}; build it again", path.display());
            (None, Some(reason))
        }
        Err(reason) => (None, Some(reason)),
    }
}
