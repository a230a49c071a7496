//! `llama devices`: what can run a model here.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{console, load, pages};
use puna_backend::{BackendError, DeviceId};
use puna_backends::{Options, REGISTRY};
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
    /// Bytes of it that are free, if known.
    free: Option<u64>,
    /// Whether models use it when no flag says otherwise.
    used: bool,
}

/// `llama devices`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    match invocation.parse(&SPEC)? {
        Some((config, _)) => print(config.json, config.cpu.isa),
        None => Ok(()),
    }
}

/// Prints all devices; the processor with its instruction sets up to a level.
pub fn print(json: bool, isa: &str) -> Result<(), Failure> {
    let devices = found(isa);
    if json {
        let rows: Vec<_> = devices
            .iter()
            .map(|device| {
                serde_json::json!({
                    "name": device.name, "description": device.description, "memory": device.memory,
                    "free": device.free, "used": device.used,
                })
            })
            .collect();
        return pages::print(format!("{:#}\n", serde_json::Value::from(rows)).as_bytes());
    }
    let mut text = String::from("Available devices:\n");
    for device in devices {
        let used = if device.used { " (used)" } else { "" };
        let free = device
            .free
            .filter(|_| device.memory.is_some())
            .map_or(String::new(), |free| format!(", {} free", console::size(free)));
        text.push_str(&format!("  {}: {}{free}{used}\n", device.name, device.description));
    }
    pages::print(text.as_bytes())
}

/// The devices of all back ends of this build, each looked at as before it gets a model.
fn found(isa: &str) -> Vec<Device> {
    let options = Options { features: load::features(isa), ..load::backend_options() };
    let mut all = Vec::new();
    for (kind, entry) in REGISTRY.iter().enumerate() {
        let refused = |name: String, error: &BackendError| {
            let description = format!("not usable: {error}");
            Device { name, description, memory: None, free: None, used: false }
        };
        let backend = match (entry.start)(&options) {
            Ok(backend) => backend,
            Err(error) => {
                all.push(refused(entry.name.to_owned(), &error));
                continue;
            }
        };
        for (index, device) in backend.devices().into_iter().enumerate() {
            let is_host = kind == 0;
            let product = if is_host { processor() + ": " } else { String::new() };
            match backend.inspect(DeviceId(index)) {
                Ok(free) => all.push(Device {
                    name: device.name,
                    description: product + &device.description,
                    memory: device.memory,
                    free,
                    used: entry.automatic,
                }),
                Err(error) => all.push(refused(device.name, &error)),
            }
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
