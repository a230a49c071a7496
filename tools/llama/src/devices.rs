//! `llama devices`: what can run a model here.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{load, pages};
use puna_backend::DeviceKind;
use puna_backends::{REGISTRY, default_threads};
use puna_flags::{Config, FLAGS, Spec, ToolSet};

/// Flags of `devices`.
pub const SPEC: Spec<Config> = Spec {
    name: "devices",
    tool: ToolSet::DEVICES,
    about: "List the devices that can run models, and which of them is used",
    groups: FLAGS,
    positional: None,
};

/// One device.
struct Device {
    /// Name for `--device`.
    name: String,
    /// Product name, what of it is used, for example instruction sets; or why it cannot be used.
    description: String,
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
                    "name": device.name, "description": device.description, "memory": device.memory,
                    "used": device.used,
                })
            })
            .collect();
        return pages::print(format!("{:#}\n", serde_json::Value::from(rows)).as_bytes());
    }
    let mut text = String::from("Available devices:\n");
    for device in devices {
        let used = if device.used { " (used)" } else { "" };
        text.push_str(&format!("  {}: {}{used}\n", device.name, device.description));
    }
    pages::print(text.as_bytes())
}

/// The devices of all back ends of this build.
fn found() -> Vec<Device> {
    let automatic = puna_backends::find(None).map_or("", |entry| entry.name);
    let mut all = Vec::new();
    for entry in REGISTRY {
        let used = entry.name == automatic;
        let backend = match (entry.start)(&load::backend_options(default_threads())) {
            Ok(backend) => backend,
            Err(error) => {
                let description = format!("not usable: {error}");
                all.push(Device { name: entry.name.to_owned(), description, memory: None, used: false });
                continue;
            }
        };
        for (index, device) in backend.devices().into_iter().enumerate() {
            let product =
                if used && device.kind == DeviceKind::Cpu { processor() + ": " } else { String::new() };
            let description = product + &device.description;
            // A model runs on the first one.
            all.push(Device {
                name: device.name,
                description,
                memory: device.memory,
                used: used && index == 0,
            });
        }
    }
    all
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
