//! What was decided, as a value and for people.

use std::fmt;
use std::ops::Range;

use super::fit::Trial;
use super::nodes::Layers;
use super::{Place, Situation};
use crate::size::size;

pub use super::need::Need;

/// Where everything of a model goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The device of each node of the graph. Its weights and its cache lie there, too.
    pub nodes: Vec<Place>,
    /// Tokens of context.
    pub context: u32,
    /// What each device gets, the host first; devices without nodes are left out.
    pub devices: Vec<DeviceUse>,
    /// What was made smaller than it was wished.
    pub choices: Vec<Choice>,
}

/// What a device gets.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceUse {
    /// The device.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Whether the embeddings, and what else comes before the layers, are there.
    pub embeddings: bool,
    /// Layers that are there, but for what was placed elsewhere by name or kind.
    pub layers: Range<u32>,
    /// Whether what comes after the layers is there.
    pub output: bool,
    /// Bytes that this takes, estimated.
    pub need: Need,
    /// Bytes that were free before, if known.
    pub free: Option<u64>,
}

/// Something that had to be made smaller, or left where it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// A smaller context.
    Context {
        /// Tokens that the model was trained with.
        wanted: u32,
        /// Tokens that fit.
        chosen: u32,
    },
    /// A smaller context, because no text gets longer than the positions that the model has learned.
    Positions {
        /// Tokens that were asked for.
        wanted: u32,
        /// Rows of the table of positions.
        positions: u32,
        /// Texts at once, each of which may be so long.
        sequences: u32,
    },
    /// Experts stay on the host.
    Experts {
        /// Of so many layers, from the first one on.
        layers: u32,
    },
    /// Fewer layers on devices.
    Layers {
        /// Layers that fit, the output counted as one.
        chosen: u32,
        /// All that there are.
        wanted: u32,
    },
    /// No layers on devices.
    Unsupported {
        /// A device.
        device: String,
        /// An operation with a cache that it lacks.
        op: &'static str,
    },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Context { wanted, chosen } => {
                write!(f, "context {chosen} instead of {wanted}, because more does not fit")
            }
            Choice::Positions { wanted, positions, sequences } => {
                let chosen = positions.saturating_mul(*sequences);
                write!(
                    f,
                    "context {chosen} instead of {wanted} (-c), because no text gets longer than the {positions} positions of \
                     position_embd.weight"
                )?;
                if *sequences == 1 { Ok(()) } else { write!(f, ", and there are at most {sequences}") }
            }
            Choice::Experts { layers } => {
                write!(f, "the experts of {layers} layers stay on the host, because more do not fit")
            }
            Choice::Layers { chosen, wanted } => {
                write!(f, "{chosen} of {wanted} layers on devices, because more do not fit")
            }
            Choice::Unsupported { device, op } => {
                write!(f, "{device} is not used, because it cannot run {op} of this model")
            }
        }
    }
}

impl Plan {
    pub(super) fn new(situation: &Situation<'_>, trial: Trial, choices: Vec<Choice>, total: u32) -> Self {
        let layers = Layers::new(total, &trial.cut);
        let of = |device: usize| {
            let mut all = (0..total).filter(|layer| layers.of.get(*layer as usize) == Some(&device));
            let first = all.next();
            let last = all.next_back().or(first);
            first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
        };
        let used = |(index, facts): (usize, &super::Facts)| {
            trial.places.contains(&index).then(|| DeviceUse {
                place: facts.place,
                name: facts.name.clone(),
                embeddings: layers.before == index,
                layers: of(index),
                output: layers.after == index,
                need: trial.needs[index],
                free: facts.free,
            })
        };
        Self {
            nodes: trial.places.iter().map(|place| situation.devices[*place].place).collect(),
            context: trial.options.context,
            devices: situation.devices.iter().enumerate().filter_map(used).collect(),
            choices,
        }
    }
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.embeddings {
            parts.push("embeddings".to_owned());
        }
        match (self.layers.start, self.layers.end.saturating_sub(1)) {
            _ if self.layers.is_empty() => {}
            (first, last) if first == last => parts.push(format!("layer {first}")),
            (first, last) => parts.push(format!("layers {first} to {last}")),
        }
        if self.output {
            parts.push("output".to_owned());
        }
        if parts.is_empty() {
            parts.push("single operations".to_owned());
        }
        write!(f, "{}: {}, {}", self.name, parts.join(", "), size(self.need.total()))?;
        match self.free {
            Some(free) => write!(f, " of {} free", size(free)),
            None => Ok(()),
        }
    }
}

/// In one line, what is where, and what was made smaller.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().map(ToString::to_string);
        let all: Vec<String> = devices.chain(self.choices.iter().map(ToString::to_string)).collect();
        f.write_str(&all.join("; "))
    }
}
