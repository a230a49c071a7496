//! `llama devices`: what can run a model here.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::pages;
use puna_flags::{Config, FLAGS, Spec, ToolSet};

/// Flags of `devices`.
pub const SPEC: Spec<Config> = Spec {
    name: "devices",
    tool: ToolSet::DEVICES,
    about: "List the devices that can run models, and which of them are used",
    groups: FLAGS,
    positional: None,
};

/// One device, found or not.
struct Device {
    /// Name for `--device`.
    name: String,
    /// Product name.
    description: String,
    /// What it can do, for example instruction sets.
    features: Vec<String>,
    /// Bytes of memory, if known.
    memory: Option<u64>,
    /// Whether models run on it when no flag says otherwise.
    used: bool,
}

/// `llama devices`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    match invocation.parse(&SPEC)? {
        Some((config, _)) => print(config.json),
        None => Ok(()),
    }
}

/// Prints all devices.
pub fn print(json: bool) -> Result<(), Failure> {
    let devices = found();
    if json {
        let rows: Vec<_> = devices
            .iter()
            .map(|device| {
                serde_json::json!({
                    "name": device.name, "description": device.description, "features": device.features,
                    "memory": device.memory, "used": device.used,
                })
            })
            .collect();
        return pages::print(format!("{:#}\n", serde_json::Value::from(rows)).as_bytes());
    }
    let mut text = String::from("Available devices:\n");
    for device in devices {
        let used = if device.used { " (used)" } else { "" };
        text.push_str(&format!("  {}: {}{used}\n", device.name, device.description));
        if !device.features.is_empty() {
            text.push_str(&format!("    {}\n", device.features.join(" ")));
        }
    }
    pages::print(text.as_bytes())
}

/// The devices. This is the one place to ask the registry of back ends (`puna_backends`) once it reports what it
/// found; until then it is the processor that runs this program.
fn found() -> Vec<Device> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    vec![Device {
        name: "CPU".to_owned(),
        description: format!("{}, {threads} threads", processor()),
        features: Vec::new(),
        memory: None,
        used: true,
    }]
}

/// Threads to use when no flag says otherwise: one per physical core that this program may use.
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let lines = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut cores = std::collections::BTreeSet::new();
    let mut package = String::new();
    for (key, value) in lines.lines().filter_map(|line| line.split_once(':')) {
        match key.trim() {
            "physical id" => package = value.trim().to_owned(),
            "core id" => drop(cores.insert((package.clone(), value.trim().to_owned()))),
            _ => {}
        }
    }
    if cores.is_empty() { allowed } else { allowed.min(cores.len()) }
}

/// Product name of the processor, or its architecture.
pub fn processor() -> String {
    let lines = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = lines.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
