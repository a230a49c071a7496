//! Requests that want adapters to count differently share neither steps nor what was computed for others.

use std::sync::Arc;

use crate::worker::{Worker, guarded};
use crate::{Demand, EngineError};

impl Worker {
    /// Has the model count adapters as it did for what a slot holds.
    pub(crate) fn wear(&mut self, slot: usize) -> Result<(), EngineError> {
        let strengths = self.slots[slot].adapters.clone();
        self.wear_these(strengths)
    }

    /// Has the model count adapters like this.
    pub(crate) fn wear_these(&mut self, strengths: Arc<[f32]>) -> Result<(), EngineError> {
        if strengths != self.worn {
            guarded(|| self.model.set_adapters(&strengths))?;
            // What was saved with others is of no use now.
            self.store.serve(strengths.clone());
            if let Some(disk) = &mut self.disk {
                disk.serve_model(self.model.identity());
            }
            self.worn = strengths;
        }
        Ok(())
    }

    /// Whether what a slot holds was computed with these strengths; a request that names none takes what is there.
    pub(crate) fn fits(&self, slot: usize, strengths: &Arc<[f32]>) -> bool {
        strengths.is_empty() || self.slots[slot].adapters == *strengths
    }

    /// Those demands that can share a step: the strengths are those of the slot that waits for longest.
    pub(crate) fn alike(&self, demands: Vec<Demand>) -> Vec<Demand> {
        let Some(first) = demands.iter().min_by_key(|demand| self.slots[demand.slot].used) else {
            return demands;
        };
        let strengths = self.slots[first.slot].adapters.clone();
        demands.into_iter().filter(|demand| self.slots[demand.slot].adapters == strengths).collect()
    }
}
