//! From a segment to compiled models.

use std::collections::HashSet;
use std::ffi::CString;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use puna_backend::{BackendError, Bounds};
use puna_graph::ops::MaskRule;
use puna_graph::{Op, Operand, WeightId};

use crate::compiled_cache::{Entry, manifest};
use crate::ffi::{self, Compiled, Core, Exported, Model, Tensor};
use crate::formats;
use crate::ir::Element;
use crate::known_sums;
use crate::memory::Kept;
use crate::pages::BLOCK;
use crate::partition::{OpenVinoPartition, Program};
use crate::settings::{Settings, is_for_runs};
use crate::translate::{CacheForm, Choices, Feed, Interface, Translated, translate};
use crate::weights::Kind;

/// A model to be compiled.
struct Plan {
    choices: Choices,
    is_for_prompts: bool,
    /// What goes in and comes out, once that is known.
    interface: Option<Interface>,
    properties: Vec<(String, String)>,
    /// What the compiled model is made of, but for the bytes of its weights.
    manifest: String,
    compiled: Option<Arc<Compiled>>,
}

/// Most elements of matrices of which the model for prompts has a copy in bf16, which takes two bytes for each: products
/// with such are almost twice as fast as with codes, but few machines have room for a large model's.
const MOST_FACTORS: u64 = 1 << 30;

impl OpenVinoPartition {
    /// The models for steps up to `bounds`: of dynamic extents one for all steps and perhaps one for prompts, or two of
    /// fixed extents.
    pub(crate) fn compile_programs(&mut self, bounds: Bounds) -> Result<Vec<Program>, BackendError> {
        let settings = self.device.settings.clone();
        let plugin = self.device.plugin.clone();
        let form = self.device.form();
        // Plugins make one operation of attention and the variables it reads, so there it is written out only for who asks.
        let is_usual = form != CacheForm::Stateful;
        let base = Choices {
            form,
            manual_attention: settings.manual_attention(&plugin)
                && (is_usual || settings.manual_attention == Some(true)),
            kind: settings.kind(&plugin),
            keys: self.formats[0],
            values: self.formats[1],
            ..Choices::default()
        };
        if !settings.is_static(&plugin) {
            let shares_caches = match base.form {
                CacheForm::Host => true,
                CacheForm::Paged => self.formats == [Element::F16; 2],
                CacheForm::Stateful => false,
            };
            let mut plans = vec![self.plan(base.clone(), false)?];
            if shares_caches && settings.has_prompt_model(&plugin, ffi::has_tiles()) {
                let kind = if self.factor_elements() <= MOST_FACTORS { Kind::CpuTiles } else { base.kind };
                plans.push(self.plan(Choices { kind, ..base }, true)?);
            }
            return self.compile(plans);
        }
        // Where rows see later ones, a text cannot be cut.
        let whole = self.sees_later_rows();
        let chunk = if whole { bounds.tokens } else { settings.chunk().min(bounds.tokens) }.max(1);
        let mut plans = Vec::new();
        for tokens in [chunk, 1] {
            if plans.is_empty() || chunk > 1 {
                let choices = Choices {
                    tokens: Some(tokens as u64),
                    outputs: Some(bounds.outputs.min(tokens).max(1) as u64),
                    cells: Some(self.options.cells.iter().map(|cells| *cells as u64).collect()),
                    ..base.clone()
                };
                plans.push(self.plan(choices, false)?);
            }
        }
        self.compile(plans)
    }

    /// Elements of all matrices that rows are multiplied with, but for the one that makes logits.
    fn factor_elements(&self) -> u64 {
        let graph = &self.segment.graph;
        let nodes = &graph.nodes[self.segment.nodes.clone()];
        let factors = nodes.iter().filter(|node| matches!(node.op, Op::MatMul(_) | Op::MatMulHeads(_)));
        let elements = factors.map(|node| match node.inputs[0] {
            Operand::Weight(weight) if graph.weights[weight.index()].layer.is_some() => {
                graph.weights[weight.index()].shape.iter().map(|extent| *extent as u64).product()
            }
            _ => 0,
        });
        elements.sum()
    }

    fn sees_later_rows(&self) -> bool {
        let nodes = &self.segment.graph.nodes[self.segment.nodes.clone()];
        nodes.iter().any(|node| match &node.op {
            Op::Attention(op) => matches!(op.mask, MaskRule::Bidirectional | MaskRule::SymmetricWindow(_)),
            _ => false,
        })
    }

    /// What a translation of these choices is made of and compiled with.
    fn plan(&self, choices: Choices, is_for_prompts: bool) -> Result<Plan, BackendError> {
        let device = &self.device;
        let mut properties = Vec::new();
        if choices.form != CacheForm::Host {
            properties.extend(formats::properties(self.formats));
        }
        let others = device.settings.properties(&device.plugin, device.threads).into_iter();
        properties.extend(others.filter(|(key, _)| !formats::is_cache_format(key)));
        if is_for_prompts {
            properties = Settings::prompt_properties(&properties);
        } else {
            self.dump(&choices)?;
        }
        let lasting: Vec<_> = properties.iter().filter(|(key, _)| !is_for_runs(key)).collect();
        let compiled_for = format!("{} {} {} {lasting:?}", device.version, device.plugin, device.product);
        let manifest = manifest(&self.segment, &self.used_weights(), &choices, &compiled_for);
        Ok(Plan { choices, is_for_prompts, interface: None, properties, manifest, compiled: None })
    }

    /// Finds or compiles the models of all plans.
    fn compile(&mut self, mut plans: Vec<Plan>) -> Result<Vec<Program>, BackendError> {
        let device = self.device.clone();
        self.share_compiled(&mut plans);
        let sums = self.weight_sums(&plans);
        self.find_compiled(&mut plans, &sums);
        // Of the last model that was read, its choices.
        let mut read: Option<(Choices, Interface, Model)> = None;
        for plan in plans.iter_mut().filter(|plan| plan.compiled.is_none()) {
            let (interface, model) = match read.take().filter(|(choices, ..)| *choices == plan.choices) {
                Some((_, interface, model)) => (interface, model),
                None => self.translate_and_read(&plan.choices)?,
            };
            self.compile_model(plan, &model, &sums)?;
            plan.interface = Some(interface.clone());
            read = Some((plan.choices.clone(), interface, model));
        }
        drop(read);
        self.share(&plans);
        if device.settings.releases_weights(&device.plugin) {
            self.used_weights().into_iter().for_each(|weight| self.weights.release(weight));
        }
        let mut programs = Vec::new();
        for Plan { choices, is_for_prompts, interface, compiled, .. } in plans {
            let (Some(compiled), Some(interface)) = (compiled, interface) else { continue };
            if let Err(error) = self.take_block_types(&compiled, &interface.feeds, is_for_prompts) {
                if is_for_prompts {
                    device.log(&format!("prompts have no model of their own: {error}"));
                    continue;
                }
                return Err(error);
            }
            let request = compiled.request().map_err(|error| self.failed(format!("compiling: {error}")))?;
            let named = |name: String| CString::new(name).unwrap_or_default();
            let feeds = interface.feeds.iter().map(|feed| (feed.clone(), named(feed.name())));
            let products = interface.products.iter().map(|product| (*product, named(product.name())));
            programs.push(Program {
                compiled,
                request,
                is_for_prompts,
                choices,
                feeds: feeds.collect(),
                products: products.collect(),
                ropes: interface.ropes,
                rows_run: HashSet::new(),
            });
        }
        Ok(programs)
    }

    /// Writes what the environment asks for into the current folder.
    fn dump(&self, choices: &Choices) -> Result<(), BackendError> {
        let write = |name: &str, text: &str| {
            let written = std::fs::write(Path::new(name), text);
            written.map_err(|error| {
                let folder = std::env::current_dir().unwrap_or_default();
                self.failed(format!("{}: {error}", folder.join(name).display()))
            })
        };
        if self.device.settings.dump_graph {
            write("cgraph_ov.txt", &self.segment.graph.to_string())?;
        }
        if self.device.settings.dump_ir {
            let extents = choices.tokens.map_or("dynamic".to_owned(), |tokens| tokens.to_string());
            let translated = translate(&self.segment, &self.weights, choices);
            write(&format!("model_{}_{extents}.xml", self.segment.nodes.start), &translated.model.to_xml())?;
        }
        Ok(())
    }

    /// Looks for compiled models that others of this process use.
    fn share_compiled(&self, plans: &mut [Plan]) {
        let device = &self.device;
        if device.settings.disable_cache {
            return;
        }
        let used = self.used_weights();
        for plan in plans {
            plan.compiled = device.shared.find(&plan.manifest, &used, &self.weights);
            if let Some(compiled) = &plan.compiled {
                device.profile(|| "compiled model shared within the process".to_owned());
                plan.interface = Some(self.interface_of(compiled, &plan.choices));
            }
        }
    }

    /// Sums of all weights, a line each, where a folder of compiled models needs them: a model that was trained on has the same shapes, and
    /// the same numbers at the ends of its tensors.
    fn weight_sums(&self, plans: &[Plan]) -> String {
        let device = &self.device;
        let is_needed = plans.iter().any(|plan| plan.compiled.is_none());
        let folder = device.settings.compiled_model_folder.as_deref();
        let Some(folder) = folder.filter(|_| is_needed) else { return String::new() };
        let start = Instant::now();
        let reduces_memory = device.settings.reduces_memory();
        let done = |weight| {
            if reduces_memory {
                self.weights.release(weight);
            }
        };
        let used = self.used_weights();
        let sums = known_sums::of_weights(folder, self.weights.as_ref(), &used, device.threads, done);
        device.profile(|| {
            let failure =
                sums.failure.map(|failure| format!(", not remembered: {failure}")).unwrap_or_default();
            format!("sums of all weights in {:.2?}, {} of them read{failure}", start.elapsed(), sums.read)
        });
        let mut text = String::new();
        for (weight, sum) in sums.all {
            let _ = writeln!(text, "{} {sum}", self.segment.graph.weights[weight.index()].name);
        }
        text
    }

    /// Looks for compiled models in their folder.
    fn find_compiled(&self, plans: &mut [Plan], sums: &str) {
        let device = &self.device;
        let start = Instant::now();
        let find = |plan: &Plan| {
            let folder = device.settings.compiled_model_folder.as_deref()?;
            let entry = Entry::new(folder, &plan.manifest, sums);
            let bytes = match entry.find() {
                Ok(found) => found?,
                Err(reason) => {
                    device.log(&format!("the compiled model is made again: {reason}"));
                    return None;
                }
            };
            let source = Exported { file: bytes, drops_pages: device.settings.reduces_memory() };
            let imported = Core::import(source, &device.plugin, &plan.properties, device.shim.as_deref());
            let compiled = match imported {
                Ok(compiled) => compiled,
                Err(reason) => {
                    let path = entry.blob.display();
                    device.log(&format!("the compiled model is made again: {path}: {reason}"));
                    return None;
                }
            };
            device.profile(|| {
                format!("compiled model found in the cache, imported in {:.2?}", start.elapsed())
            });
            Some(Arc::new(compiled))
        };
        // Importing is work for one thread, so two at once take no longer.
        std::thread::scope(|scope| {
            for plan in plans.iter_mut().filter(|plan| plan.compiled.is_none()) {
                scope.spawn(|| {
                    let found = find(plan);
                    plan.interface =
                        found.as_ref().map(|compiled| self.interface_of(compiled, &plan.choices));
                    plan.compiled = found;
                });
            }
        });
    }

    /// What goes into a compiled model and comes out of it: that is in its names.
    fn interface_of(&self, compiled: &Compiled, choices: &Choices) -> Interface {
        let start = Instant::now();
        let named = compiled
            .names()
            .ok()
            .and_then(|(feeds, products)| Interface::named(&self.segment, &self.weights, &feeds, &products));
        // Of a value that leaves in two ways only one name is told.
        named.unwrap_or_else(|| {
            let interface = translate(&self.segment, &self.weights, choices).interface;
            self.device.profile(|| format!("translated in {:.2?} for its names", start.elapsed()));
            interface
        })
    }

    /// Lets other partitions of the process find these compiled models.
    fn share(&self, plans: &[Plan]) {
        for plan in plans {
            if let (Some(compiled), false) = (&plan.compiled, self.device.settings.disable_cache) {
                self.device.shared.keep(&plan.manifest, &self.weights, compiled);
            }
        }
    }

    /// Compiles a model that was read and keeps it.
    fn compile_model(&self, plan: &mut Plan, model: &Model, sums: &str) -> Result<(), BackendError> {
        let device = &self.device;
        let start = Instant::now();
        let compiled = device
            .core
            .compile(model, &device.plugin, &plan.properties)
            .map_err(|error| self.failed(format!("compiling: {error}")))?;
        device.profile(|| format!("compiled in {:.2?}", start.elapsed()));
        if let Some(folder) = &device.settings.compiled_model_folder
            && let Err(error) = Entry::new(folder, &plan.manifest, sums).keep(|path| compiled.export(path))
        {
            device.log_once(&format!("the compiled model is not kept: {error}"));
        }
        plan.compiled = Some(Arc::new(compiled));
        Ok(())
    }

    /// The segment in the library's form.
    fn translate_and_read(&self, choices: &Choices) -> Result<(Interface, Model), BackendError> {
        let start = Instant::now();
        let translated = translate(&self.segment, &self.weights, choices);
        let translation = start.elapsed();
        let model = self.read(&translated, choices.form)?;
        self.device.profile(|| {
            format!(
                "{} layers translated in {translation:.2?}, {} MB of constants and text read in {:.2?}",
                translated.model.layer_count(),
                translated.blob.length() / 1_000_000,
                start.elapsed() - translation,
            )
        });
        Ok((translated.interface, model))
    }

    /// The library's form of a translation.
    fn read(&self, translated: &Translated, form: CacheForm) -> Result<Model, BackendError> {
        let failed = |what: &str, reason: String| self.failed(format!("{what}: {reason}"));
        let reduces_memory = self.device.settings.reduces_memory();
        let fill = |bytes: &mut [u8]| {
            translated.blob.fill(bytes, |weight| {
                if reduces_memory {
                    self.weights.release(weight);
                }
            });
        };
        let length = translated.blob.length();
        let spilled =
            self.device.settings.spill_folder().map(|folder| Tensor::spilled(&folder, length, fill));
        let tensor = match spilled {
            Some(Ok(tensor)) => tensor,
            other => {
                if let Some(Err(error)) = other {
                    self.device.log_once(&format!("constants stay in memory: {error}"));
                }
                Tensor::filled(length, fill).map_err(|error| failed("constants", error))?
            }
        };
        let xml = translated.model.to_xml();
        let mut model = self.device.core.read(&xml, tensor).map_err(|error| failed("reading", error))?;
        if let (CacheForm::Paged, Some(shim)) = (form, &self.device.shim) {
            model.page(shim).map_err(|error| failed("paged attention", error))?;
        }
        Ok(model)
    }

    /// Gives paged states the element types that the plugin chose. Those of the model for prompts are bf16, which only numbers
    /// of two bytes can be turned into in their places.
    fn take_block_types(
        &mut self,
        compiled: &Compiled,
        feeds: &[Feed],
        is_for_prompts: bool,
    ) -> Result<(), BackendError> {
        for feed in feeds {
            let (Feed::KeyBlocks(state) | Feed::ValueBlocks(state)) = feed else { continue };
            let name = feed.name();
            let (element, shape) = compiled.input_type(&name).map_err(|error| self.failed(error))?;
            let Some(Kept::Paged { keys, values }) = self.kept.get_mut(state.index()) else { continue };
            let blocks = if matches!(feed, Feed::KeyBlocks(_)) { keys } else { values };
            let expected = blocks.shape().into_iter().map(i64::unsigned_abs);
            let fits = shape.iter().zip(expected).skip(1).all(|(found, expected)| *found == Some(expected));
            match element {
                Some(Element::BF16) if fits && is_for_prompts && blocks.element() == Element::F16 => {}
                Some(element @ (Element::F32 | Element::F16 | Element::BF16)) if fits && !is_for_prompts => {
                    blocks.set_element(element)
                }
                _ => {
                    return Err(self.failed(format!(
                        "{name} has the layout {element:?} {shape:?}; caches of blocks of {BLOCK} can be f32, f16 or bf16"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The tensors that the segment reads, each once.
    fn used_weights(&self) -> Vec<WeightId> {
        let nodes = &self.segment.graph.nodes[self.segment.nodes.clone()];
        let operands = nodes.iter().flat_map(|node| &node.inputs);
        let weights = operands.filter_map(|operand| match operand {
            Operand::Weight(weight) => Some(*weight),
            _ => None,
        });
        let mut weights: Vec<WeightId> = weights.collect();
        weights.sort();
        weights.dedup();
        weights
    }
}
