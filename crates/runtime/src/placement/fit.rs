//! How much goes to devices: what was asked for, or as much as fits.
//!
//! What is not asked for gives way in this order: the context, down to a least one; the experts, layer by layer; layers.
//! What is free then goes to the context again.

use super::need::{Need, need};
use super::nodes::{Cut, HOST, is_expert, layers, place};
use super::{Choice, Fit, Placement, Plan, Situation};
use crate::{ModelOptions, RuntimeError};

/// A context is chosen in such steps, in tokens.
const CONTEXT_STEP: u32 = 256;

/// One way to place the model.
pub struct Trial {
    pub cut: Cut,
    pub options: ModelOptions,
    pub places: Vec<usize>,
    pub needs: Vec<Need>,
}

struct Search<'a> {
    situation: &'a Situation<'a>,
    placement: &'a Placement,
    shares: Vec<f64>,
    /// Layers of the model.
    total: u32,
}

/// The best way that fits; or in an error how much is missing.
pub fn choose(situation: &Situation<'_>, placement: &Placement) -> Result<Plan, RuntimeError> {
    let total = layers(situation.graph);
    let mut search = Search { situation, placement, shares: shares(situation, placement), total };
    let mut choices = Vec::new();
    if placement.fit.as_ref().is_some_and(|fit| fit.devices_are_optional)
        && let Some(choice) = search.lacking()
    {
        search.shares.clear();
        choices.push(choice);
    }
    let whole = if search.shares.is_empty() { 0 } else { total + 1 };
    let asked = placement.layers.map_or(whole, |layers| layers.min(whole));
    let cut = search.cut(asked, placement.experts_on_host);
    let trial = match &placement.fit {
        None => search.trial(&cut, situation.options.context)?,
        Some(fit) => search.fitting(fit, cut)?,
    };
    let context = (situation.options.context, trial.options.context);
    if context.0 != context.1 {
        choices.push(Choice::Context { wanted: context.0, chosen: context.1 });
    }
    if trial.cut.layers > 0 && trial.cut.experts_on_host > placement.experts_on_host {
        let layers = trial.cut.experts_on_host.min(total);
        choices.push(Choice::Experts { layers });
    }
    if trial.cut.layers < asked {
        choices.push(Choice::Layers { chosen: trial.cut.layers, wanted: asked });
    }
    Ok(Plan::new(situation, trial, choices, total))
}

/// The devices' shares: those asked for, or what they have free.
fn shares(situation: &Situation<'_>, placement: &Placement) -> Vec<f64> {
    let count = placement.devices.len();
    let asked: Vec<f64> = (0..count)
        .map(|device| placement.shares.get(device).copied().unwrap_or(0.0).max(0.0).into())
        .collect();
    if asked.iter().sum::<f64>() > 0.0 {
        return asked;
    }
    let free = |device: usize| budget(situation, placement, 1 + device, true).map(|bytes| bytes as f64);
    let known: Option<Vec<f64>> = (0..count).map(free).collect();
    known.filter(|free| free.iter().sum::<f64>() > 0.0).unwrap_or_else(|| vec![1.0; count])
}

/// Bytes that a device may be filled with, if that is known.
fn budget(situation: &Situation<'_>, placement: &Placement, device: usize, margin: bool) -> Option<u64> {
    let free = situation.devices.get(device)?.free?;
    let margins = placement.fit.as_ref().map_or(&[][..], |fit| &fit.margins);
    let index = device.checked_sub(1).filter(|_| margin && device <= placement.devices.len());
    let margin = index.and_then(|index| margins.get(index).or(margins.last())).copied().unwrap_or(0);
    Some(free.saturating_sub(margin))
}

impl Search<'_> {
    fn cut(&self, layers: u32, experts_on_host: u32) -> Cut {
        Cut { layers, experts_on_host, shares: self.shares.clone() }
    }

    fn trial(&self, cut: &Cut, context: u32) -> Result<Trial, RuntimeError> {
        let Situation { graph, options, devices, .. } = self.situation;
        let micro_batch = options.micro_batch.min(context);
        let outputs = options.outputs.min(micro_batch);
        let options = ModelOptions { context, micro_batch, outputs, ..(*options).clone() };
        let places = place(graph, devices, self.placement, cut)?;
        let needs = need(graph, &options, devices, &places);
        Ok(Trial { cut: cut.clone(), options, places, needs })
    }

    /// Bytes that a device lacks.
    fn missing(&self, trial: &Trial, device: usize, margin: bool) -> u64 {
        let budget = budget(self.situation, self.placement, device, margin);
        budget.map_or(0, |budget| trial.needs[device].total().saturating_sub(budget))
    }

    fn fits(&self, trial: &Trial, margin: bool) -> bool {
        (0..trial.needs.len()).all(|device| self.missing(trial, device, margin) == 0)
    }

    /// The cut with the largest context with which it fits.
    fn with_context(&self, fit: &Fit, cut: &Cut, margin: bool) -> Result<Option<Trial>, RuntimeError> {
        let full = self.situation.options.context;
        let trial = self.trial(cut, full)?;
        if self.fits(&trial, margin) {
            return Ok(Some(trial));
        }
        let least = self.least_context(fit);
        let mut best = self.trial(cut, least)?;
        if least == full || !self.fits(&best, margin) {
            return Ok(None);
        }
        let (mut low, mut high) = (least / CONTEXT_STEP, full / CONTEXT_STEP);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let trial = self.trial(cut, middle.saturating_mul(CONTEXT_STEP))?;
            if self.fits(&trial, margin) {
                (low, best) = (middle, trial);
            } else {
                high = middle - 1;
            }
        }
        Ok(Some(best))
    }

    fn least_context(&self, fit: &Fit) -> u32 {
        let full = self.situation.options.context;
        if self.situation.context_is_free { fit.least_context.clamp(1, full) } else { full }
    }

    /// The cut that was asked for, with less of what was not.
    fn fitting(&self, fit: &Fit, asked: Cut) -> Result<Trial, RuntimeError> {
        if let Some(trial) = self.with_context(fit, &asked, true)? {
            return Ok(trial);
        }
        let is_free = self.placement.layers.is_none() && !self.shares.is_empty();
        if !is_free {
            // Who names numbers gets them where they may just fit.
            let trial = self.with_context(fit, &asked, false)?;
            return trial.map_or_else(|| Err(self.too_large(fit, &asked)?), Ok);
        }
        let least = self.least_context(fit);
        let mut largest = None;
        for cut in self.smaller(&asked) {
            if let Some(trial) = self.with_context(fit, &cut, true)? {
                return Ok(trial);
            }
            let trial = self.trial(&cut, least)?;
            let on_devices = (0..trial.needs.len()).filter(|device| *device != HOST);
            let only_host = on_devices.map(|device| self.missing(&trial, device, true)).sum::<u64>() == 0;
            if only_host && largest.is_none() {
                largest = Some(cut);
            }
        }
        // Where it is the context that asks for too much, the devices that it was meant for are named.
        let is_context = self.fits(&self.trial(&asked, CONTEXT_STEP.min(least))?, true);
        let named = largest.as_ref().filter(|_| !is_context).unwrap_or(&asked);
        Err(self.too_large(fit, named)?)
    }

    /// Cuts that need less and less on devices.
    fn smaller(&self, asked: &Cut) -> Vec<Cut> {
        let graph = self.situation.graph;
        let has_experts = graph.nodes.iter().any(is_expert);
        let experts = if has_experts { self.total } else { asked.experts_on_host };
        let first = asked.experts_on_host.saturating_add(1);
        let with_experts = (first..=experts).map(|layers| self.cut(asked.layers, layers));
        let fewer = (0..asked.layers).rev().map(|layers| self.cut(layers, experts));
        with_experts.chain(fewer).collect()
    }

    /// What keeps the devices from keeping the model's caches, if something does.
    fn lacking(&self) -> Option<Choice> {
        use puna_graph::ops::OpDef;
        let Situation { graph, devices, .. } = self.situation;
        devices.iter().skip(1).take(self.placement.devices.len()).find_map(|device| {
            let lacks = |index: usize| device.supports.get(index) == Some(&false);
            let mut nodes = graph.nodes.iter().enumerate();
            let (_, node) = nodes.find(|(index, node)| lacks(*index) && node.op.state().is_some())?;
            Some(Choice::Unsupported { device: device.name.clone(), op: node.op.name() })
        })
    }

    /// How much a cut lacks on the device that lacks most, with the least context.
    fn too_large(&self, fit: &Fit, cut: &Cut) -> Result<RuntimeError, RuntimeError> {
        let trial = self.trial(cut, self.least_context(fit))?;
        let missing = |device: &usize| self.missing(&trial, *device, false);
        let device = (0..trial.needs.len()).max_by_key(missing).unwrap_or(HOST);
        let facts = &self.situation.devices[device];
        let Need { weights, caches, work } = trial.needs[device];
        Ok(RuntimeError::DoesNotFit {
            device: facts.name.clone(),
            free: facts.free.unwrap_or(0),
            weights,
            caches,
            work,
            missing: missing(&device),
            context: trial.options.context,
            on_host: device == HOST,
        })
    }
}
