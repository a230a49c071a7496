//! Where a model lies and runs: from its graph, what devices have free, and what is wished, to a [`Plan`].
//!
//! Nothing here touches a device: [`plan`] is a function of plain values. Devices are numbered: 0 is the host, then those
//! that layers may go to, then those that only run what no other can.

mod fit;
mod need;
mod nodes;
mod plan;

use std::collections::BTreeMap;

use puna_backend::DeviceId;
use puna_graph::Graph;

pub(crate) use need::{state_bytes, work};
pub use plan::{Choice, DeviceUse, Need, Plan};

use crate::{ModelOptions, RuntimeError};

/// A device of one of the back ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// Index into the list of back ends given to [`Model::load`](crate::Model::load).
    pub backend: usize,
    /// Device of that back end.
    pub device: DeviceId,
}

/// What is wished about where a model lies and runs. By default all of it is on the first device of the first back end.
/// Nodes that a device lacks go to the host, or to the first other back end that has them.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    /// Runs what goes nowhere else.
    pub host: Place,
    /// Devices that layers go to, in this order.
    pub devices: Vec<Place>,
    /// How many layers go to the devices: the last ones, and the output counts as one of them. One more than the model has
    /// takes the whole model there, with its embeddings. `None` for as many as fit.
    pub layers: Option<u32>,
    /// The devices' shares of these layers, in any unit; none for shares of their free memory.
    pub shares: Vec<f32>,
    /// The first so many layers leave their experts on the host.
    pub experts_on_host: u32,
    /// The first so many layers leave their dense feed-forward networks on the host.
    pub feed_forward_on_host: u32,
    /// Places of tensors by name; they come before everything else.
    pub tensors: BTreeMap<String, Place>,
    /// Caches, and what reads them, stay on the host.
    pub caches_on_host: bool,
    /// What was not asked for follows from free memory; `None` for as much as there is, whether it fits or not.
    pub fit: Option<Fit>,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            host: Place { backend: 0, device: DeviceId(0) },
            devices: Vec::new(),
            layers: None,
            shares: Vec::new(),
            experts_on_host: 0,
            feed_forward_on_host: 0,
            tensors: BTreeMap::new(),
            caches_on_host: false,
            fit: None,
        }
    }
}

/// How a model is made to fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fit {
    /// Bytes to leave free on each device; the last one also counts for those after it.
    pub margins: Vec<u64>,
    /// Least context that may be chosen where none was asked for.
    pub least_context: u32,
    /// Devices were not asked for: they get nothing of a model that touches its caches in ways they lack.
    pub devices_are_optional: bool,
}

/// What a plan is made from.
pub struct Situation<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Its sizes, resolved.
    pub options: &'a ModelOptions,
    /// Whether a smaller context may be chosen.
    pub context_is_free: bool,
    /// The devices: the host, those of [`Placement::devices`], others.
    pub devices: &'a [Facts],
}

/// What is known about a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// Where it is.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Bytes that are free, if known.
    pub free: Option<u64>,
    /// For each node of the graph whether it can run it.
    pub supports: Vec<bool>,
    /// For each weight of the graph its bytes there.
    pub weights: Vec<u64>,
}

/// Decides where everything goes.
pub fn plan(situation: &Situation<'_>, placement: &Placement) -> Result<Plan, RuntimeError> {
    fit::choose(situation, placement)
}
