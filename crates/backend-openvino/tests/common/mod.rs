//! Starting the back end in tests.
#![allow(dead_code)] // each test program uses some of it
#![allow(clippy::print_stdout)] // a skipped test says why

use std::sync::{Arc, Mutex, OnceLock};

use puna_backend_openvino::OpenVino;

/// Properties under which a plugin computes as exactly as it can.
pub const EXACT: (&str, &str) = (
    "GGML_OPENVINO_PROPERTIES",
    "INFERENCE_PRECISION_HINT=f32,KV_CACHE_PRECISION=f32,DYNAMIC_QUANTIZATION_GROUP_SIZE=0",
);

/// The back end with these variables on top of the environment's, and what it logs; `None`, with a line that says why,
/// where the library is missing.
pub fn start(variables: &[(&str, &str)]) -> Option<(OpenVino, Arc<Mutex<Vec<String>>>)> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    let log = Arc::new(move |line: &str| sink.lock().expect("no panic").push(line.to_owned()));
    let lookup = |name: &str| {
        let own = variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        // The user's own settings are no part of a test.
        own.or_else(|| (!name.starts_with("GGML_")).then(|| std::env::var(name).ok()).flatten())
    };
    match OpenVino::new(&lookup, 2, log) {
        Ok(backend) => Some((backend, lines)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Leaves the shim out.
pub const NO_SHIM: (&str, &str) = ("PUNA_OPENVINO_SHIM", "0");

/// The path of the shim, built once for each test program; an error says why it is not there.
pub fn shim() -> Result<&'static str, String> {
    static SHIM: OnceLock<Result<String, String>> = OnceLock::new();
    let built = SHIM.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/build.sh");
        // Several programs may build at once: each into its own folder.
        let own = format!("{}/{}", env!("CARGO_TARGET_TMPDIR"), env!("CARGO_CRATE_NAME"));
        std::fs::create_dir_all(&own).expect("a folder for the shim");
        let mut command = std::process::Command::new("bash");
        command.arg(script).arg(&own);
        if let Some(folder) = std::env::var_os("VIRTUAL_ENV") {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let bin = std::path::Path::new(&folder).join("bin");
            let paths = std::iter::once(bin).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(paths).expect("folders of the search path"));
        }
        let output = command.output().expect("bash runs");
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).expect("a path").trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    });
    built.as_deref().map_err(Clone::clone)
}

/// Like [`start`], with the shim. `None`, with a line that says why, where there is no compiler or no header of OpenVINO.
pub fn start_with_shim(variables: &[(&str, &str)]) -> Option<(OpenVino, Arc<Mutex<Vec<String>>>)> {
    let shim = match shim() {
        Ok(shim) => shim,
        Err(reason) => {
            println!("skipped: the shim is not built: {reason}");
            return None;
        }
    };
    let mut all = variables.to_vec();
    all.push(("PUNA_OPENVINO_SHIM", shim));
    let (backend, lines) = start(&all)?;
    let said = lines.lock().expect("no panic").join("\n");
    assert!(!said.contains("kept by the host"), "{said}");
    Some((backend, lines))
}
