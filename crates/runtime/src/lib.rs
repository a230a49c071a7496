//! A loaded model: it turns batches of tokens into steps, keeps the ledgers of the caches, and runs the segments
//! of the graph on their devices.
//!
//! The ledgers hold integers, the back ends' partitions hold memory. [`Model::run`] cuts a [`Batch`] into
//! micro-batches, asks each ledger for cells, runs the partitions in order and gathers the rows of logits.
#![forbid(unsafe_code)]

mod batch;
mod checksum;
mod draft;
mod embed;
mod encode;
mod error;
mod estimate;
mod extras;
mod head;
mod identity;
mod information;
mod layer_inputs;
mod ledger;
mod load;
mod model;
mod options;
mod parts;
mod placement;
mod reach;
mod saved;
mod sequences;
mod size;
mod texts;
mod weights;

pub use batch::{Batch, Logits, OutputRow, OutputRows, Outputs, Work};
pub use checksum::Checksum;
pub use draft::DraftOutputs;
pub use error::{RuntimeError, SavedError};
pub use estimate::{Estimate, estimate};
pub use extras::{Adapter, Extras};
pub use head::{DraftHead, HeadKind};
pub use information::ModelInformation;
pub use load::planned;
pub use model::{Model, Observer};
pub use options::{HeadInputs, ModelOptions};
pub use placement::{Choice, DeviceUse, Facts, Fit, Need, Place, Placement, Plan, Situation, plan};
pub use puna_graph::{Best, BestRow};
pub use puna_models::{Pooling, Purpose};
pub use reach::Reach;
