//! Which devices a model goes to, as the flags say.

use crate::console::Console;
use crate::failure::Failure;
use puna_backend::{Backend, DeviceId};
use puna_backends::{Options as Processor, REGISTRY};
use puna_flags::{Device, Layers};
use puna_gguf::Tensors;
use puna_runtime::{Fit, Place, Placement, RuntimeError};
use regex_automata::meta::Regex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Back ends, the processor's first, and what is wished of them.
pub struct Devices {
    /// Those that are needed.
    pub backends: Vec<Arc<dyn Backend>>,
    /// Where the model goes.
    pub placement: Placement,
}

/// The processor.
const HOST: Place = Place { backend: 0, device: DeviceId(0) };

/// The devices for a model with these tensors. What the program chooses by itself and cannot be used is left out with a
/// warning.
pub fn devices(
    processor: &Processor,
    wish: &Device,
    tensors: &Tensors,
    console: &Console,
) -> Result<Devices, Failure> {
    let mut found = Found { processor, kinds: Vec::new(), backends: Vec::new() };
    found.start(0)?;
    let mut places = match &wish.names {
        Some(names) => names.iter().map(|name| found.place(name)).collect::<Result<Vec<_>, _>>()?,
        None => found.automatic(console),
    };
    places.retain(|place| *place != HOST);
    let mut places = split(wish, places)?;
    if wish.shares.len() > places.len() && !places.is_empty() {
        let (shares, devices) = (wish.shares.len(), places.len());
        return Err(Failure::Failed(format!("--tensor-split has {shares} shares for {devices} devices")));
    }
    let mut shares = wish.shares.clone();
    if matches!(wish.split, "row" | "tensor") {
        places = found.divided(wish.split, &places, std::mem::take(&mut shares), console)?;
    }
    let fit = wish.fit.then(|| Fit {
        margins: wish.fit_target.iter().map(|mebibytes| u64::from(*mebibytes) << 20).collect(),
        least_context: wish.fit_context.max(1),
        devices_are_optional: wish.names.is_none() && wish.layers == Layers::Fitting,
    });
    let tensors = overrides(&mut found, wish, tensors)?;
    let placement = Placement {
        host: HOST,
        devices: places,
        layers: match wish.layers {
            Layers::Fitting => None,
            Layers::All => Some(u32::MAX),
            Layers::Count(count) => Some(count),
        },
        shares,
        experts_on_host: wish.cpu_moe,
        feed_forward_on_host: wish.cpu_ffn,
        tensors,
        caches_on_host: !wish.kv_offload,
        fit,
    };
    Ok(Devices { backends: found.backends, placement })
}

/// The devices that the way of splitting leaves.
fn split(wish: &Device, places: Vec<Place>) -> Result<Vec<Place>, Failure> {
    match wish.split {
        "none" if !places.is_empty() => match places.get(wish.main as usize) {
            Some(place) => Ok(vec![*place]),
            None => {
                let (index, devices) = (wish.main, places.len());
                Err(Failure::Failed(format!(
                    "--main-gpu is {index}, there are {devices} devices, counted from 0"
                )))
            }
        },
        _ => Ok(places),
    }
}

/// Places of tensors by the first pattern that finds their names.
fn overrides(
    found: &mut Found<'_>,
    wish: &Device,
    tensors: &Tensors,
) -> Result<BTreeMap<String, Place>, Failure> {
    let mut patterns = Vec::new();
    for (pattern, device) in &wish.overrides {
        let regex = Regex::new(pattern).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or("");
            Failure::Failed(format!("--override-tensor: '{pattern}' is no pattern: {reason}"))
        })?;
        // Elsewhere the host's memory that a card reads itself has a name of its own.
        let is_host = device.ends_with("_Host");
        patterns.push((regex, if is_host { HOST } else { found.place(device)? }));
    }
    let place = |name: &str| patterns.iter().find(|(regex, _)| regex.is_match(name)).map(|(_, place)| *place);
    Ok(tensors.iter().filter_map(|tensor| Some((tensor.name.clone(), place(&tensor.name)?))).collect())
}

/// Back ends that were started.
struct Found<'a> {
    processor: &'a Processor,
    /// Rows of the registry.
    kinds: Vec<usize>,
    backends: Vec<Arc<dyn Backend>>,
}

impl Found<'_> {
    /// Starts a row of the registry, if that was not done; returns its index among the back ends.
    fn start(&mut self, kind: usize) -> Result<usize, Failure> {
        if let Some(index) = self.kinds.iter().position(|other| *other == kind) {
            return Ok(index);
        }
        let backend = (REGISTRY[kind].start)(self.processor).map_err(RuntimeError::from)?;
        self.kinds.push(kind);
        self.backends.push(backend);
        Ok(self.backends.len() - 1)
    }

    /// The device of this name.
    fn place(&mut self, name: &str) -> Result<Place, Failure> {
        let entry = puna_backends::find(Some(name)).map_err(|error| Failure::NoDevice(error.to_string()))?;
        let kind = REGISTRY.iter().position(|other| other.name == entry.name).unwrap_or(0);
        let backend = self.start(kind).map_err(|failure| {
            let reason = failure.message();
            Failure::Failed(format!(
                "device {name} cannot be used: {reason}; name another one ('llama devices' lists those that work), or none"
            ))
        })?;
        let devices = self.backends[backend].devices();
        match devices.iter().position(|device| device.name.eq_ignore_ascii_case(name)) {
            Some(device) => Ok(Place { backend, device: DeviceId(device) }),
            None => {
                let names: Vec<String> = devices.into_iter().map(|device| device.name).collect();
                Err(Failure::NoDevice(format!("there is no device {name}, only {}", names.join(", "))))
            }
        }
    }

    /// These devices as one that divides the rows of large matrices between them.
    fn divided(
        &mut self,
        split: &str,
        places: &[Place],
        mut shares: Vec<f32>,
        console: &Console,
    ) -> Result<Vec<Place>, Failure> {
        let Some(first) = places.first().filter(|_| places.len() > 1) else {
            console.warn(&format!("--split-mode {split} divides nothing: there are fewer than two devices"));
            return Ok(places.to_vec());
        };
        let cannot = |reason: &str| {
            Failure::Failed(format!(
                "--split-mode {split} cannot be used: {reason}; --split-mode layer gives each device whole layers"
            ))
        };
        if places.iter().any(|place| place.backend != first.backend) {
            return Err(cannot("the devices are not all of one kind"));
        }
        if !shares.is_empty() {
            shares.resize(places.len(), 0.0);
        }
        let devices: Vec<DeviceId> = places.iter().map(|place| place.device).collect();
        let divided = self.backends[first.backend].divided(&devices, &shares);
        // It takes the place of its members, which have no work of their own.
        self.backends[first.backend] = divided.map_err(|error| cannot(&error.to_string()))?;
        Ok(vec![Place { backend: first.backend, device: DeviceId(0) }])
    }

    /// Devices that are used when none is named.
    fn automatic(&mut self, console: &Console) -> Vec<Place> {
        let mut places = Vec::new();
        for (kind, entry) in REGISTRY.iter().enumerate().filter(|(_, entry)| entry.automatic) {
            match self.start(kind) {
                Ok(backend) => {
                    for device in (0..self.backends[backend].devices().len()).map(DeviceId) {
                        match self.backends[backend].inspect(device) {
                            Ok(_) => places.push(Place { backend, device }),
                            Err(error) => console.warn(&error.to_string()),
                        }
                    }
                }
                // Most machines have no card, and need not be told.
                Err(Failure::Failed(reason)) if reason.contains("not installed") => {}
                Err(failure) => console.warn(&format!("{}: {}", entry.name, failure.message())),
            }
        }
        places
    }
}
