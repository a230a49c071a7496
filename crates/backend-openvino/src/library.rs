//! Where the library is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::settings::Lookup;

/// Variables that name a folder of OpenVINO's: by hand, by `setupvars`, by CMake.
const FOLDERS: &[&str] =
    &["OPENVINO_DIR", "OpenVINO_DIR", "OPENVINO_INSTALL_DIR", "INTEL_OPENVINO_DIR", "OPENVINO_LIB_PATHS"];
/// Variables with lists of folders in which libraries are looked for.
const PATHS: &[&str] = if cfg!(windows) {
    &["PATH"]
} else if cfg!(target_os = "macos") {
    &["DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH"]
} else {
    &["LD_LIBRARY_PATH"]
};
/// Folders below one of OpenVINO's that may have its libraries; also for variables that point deeper.
const BELOW: &[&str] = &[
    "",
    "libs",
    "openvino/libs",
    "lib",
    "lib/intel64",
    "runtime/lib/intel64",
    "runtime/lib/aarch64",
    "runtime/lib/arm64/Release",
    "runtime/bin/intel64/Release",
    "../lib/intel64",
    "../lib",
    "../../lib",
];
/// Folders of libraries that a system's packages use.
const SYSTEM: &[&str] = &[
    "/opt/intel/openvino/runtime/lib/intel64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "C:\\Intel\\openvino\\runtime\\bin\\intel64\\Release",
];

/// Finds the library of the C interface. `log` hears of variables that lead nowhere.
pub fn find(lookup: Lookup<'_>, log: &dyn Fn(&str)) -> Option<PathBuf> {
    let below = |folder: &Path| BELOW.iter().find_map(|part| library_in(&folder.join(part)));
    for name in FOLDERS {
        let Some(list) = lookup(name).filter(|list| !list.trim().is_empty()) else { continue };
        if let Some(found) = split(&list).iter().find_map(|folder| below(folder)) {
            return Some(found);
        }
        log(&format!("{name}={list} leads to no library of OpenVINO's; looking elsewhere"));
    }
    if let Some(found) = lookup("VIRTUAL_ENV").and_then(|folder| in_environment(Path::new(&folder))) {
        return Some(found);
    }
    let paths = PATHS.iter().filter_map(|name| lookup(name));
    paths
        .flat_map(|list| split(&list))
        .find_map(|folder| library_in(&folder))
        .or_else(|| in_python(lookup))
        .or_else(|| SYSTEM.iter().find_map(|folder| library_in(Path::new(folder))))
}

fn split(list: &str) -> Vec<PathBuf> {
    std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// The library in this folder, with or without a version after its name.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let is_library = |name: &str| {
        name == "openvino_c.dll"
            || name == "libopenvino_c.dylib"
            || name.starts_with("libopenvino_c.so")
            || name.starts_with("libopenvino_c.") && name.ends_with(".dylib")
    };
    let entries = std::fs::read_dir(folder).ok()?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_library))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.pop()
}

/// The wheel in a virtual environment.
fn in_environment(folder: &Path) -> Option<PathBuf> {
    let direct = library_in(&folder.join("Lib/site-packages/openvino/libs"));
    direct.or_else(|| {
        let versions = std::fs::read_dir(folder.join("lib")).ok()?;
        versions.flatten().find_map(|entry| library_in(&entry.path().join("site-packages/openvino/libs")))
    })
}

/// The wheel of the Python that the search path has.
fn in_python(lookup: Lookup<'_>) -> Option<PathBuf> {
    const SCRIPT: &str = "import importlib.util as u; s = u.find_spec('openvino'); \
                          print(s.submodule_search_locations[0] if s else '')";
    lookup("PATH")?;
    let python = if cfg!(windows) { "python" } else { "python3" };
    let output = Command::new(python).args(["-c", SCRIPT]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    let folder = folder.trim();
    (!folder.is_empty()).then(|| library_in(&Path::new(folder).join("libs"))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_lead_to_the_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let place = |part: &str, name: &str| {
            std::fs::create_dir_all(root.join(part)).expect("a folder");
            std::fs::write(root.join(part).join(name), "").expect("a file");
        };
        place("wheel/openvino/libs", "libopenvino_c.so.2641");
        place("archive/runtime/lib/intel64", "libopenvino_c.so");
        place("environment/lib/python3.11/site-packages/openvino/libs", "libopenvino_c.so.2641");
        place("path", "libopenvino_c.so.9");
        place("path", "libopenvino_other.so");
        for (variable, value, expected) in [
            ("OPENVINO_DIR", "wheel", "wheel/openvino/libs/libopenvino_c.so.2641"),
            ("OpenVINO_DIR", "archive/runtime/cmake", "archive/runtime/lib/intel64/libopenvino_c.so"),
            ("INTEL_OPENVINO_DIR", "archive", "archive/runtime/lib/intel64/libopenvino_c.so"),
            (
                "VIRTUAL_ENV",
                "environment",
                "environment/lib/python3.11/site-packages/openvino/libs/libopenvino_c.so.2641",
            ),
            (PATHS[0], "path", "path/libopenvino_c.so.9"),
        ] {
            std::fs::create_dir_all(root.join(value)).expect("a folder");
            let value = root.join(value).to_string_lossy().into_owned();
            let lookup = |name: &str| (name == variable).then(|| value.clone());
            let found = find(&lookup, &|line| panic!("{line}")).expect(variable);
            let found = found.canonicalize().expect("it is there");
            assert_eq!(found, root.join(expected).canonicalize().expect("it is there"), "{variable}");
        }
    }

    #[test]
    fn variables_that_lead_nowhere_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("text");
        std::fs::write(&text, "no folder").expect("a file");
        let right = folder.path().join("right");
        std::fs::create_dir(&right).expect("a folder");
        std::fs::write(right.join("libopenvino_c.so.2641"), "").expect("a file");
        let [text, right] = [text, right].map(|path| path.to_string_lossy().into_owned());
        for wrong in ["/no/such/folder", &text] {
            let told = std::cell::RefCell::new(Vec::new());
            let lookup = |name: &str| match name {
                "OPENVINO_DIR" => Some(wrong.to_owned()),
                "INTEL_OPENVINO_DIR" => Some(right.clone()),
                "OPENVINO_LIB_PATHS" => Some(String::new()),
                _ => None,
            };
            let found = find(&lookup, &|line| told.borrow_mut().push(line.to_owned()));
            assert_eq!(found, Some(Path::new(&right).join("libopenvino_c.so.2641")));
            let line = format!("OPENVINO_DIR={wrong} leads to no library of OpenVINO's; looking elsewhere");
            assert_eq!(told.into_inner(), [line]);
        }
    }
}
