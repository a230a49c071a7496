//! From a segment to compiled models.

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_backend::{BackendError, Bounds};
use puna_graph::ops::MaskRule;
use puna_graph::{Op, Operand, WeightId};

use crate::backend::cache_element;
use crate::compiled_cache::{Entry, manifest};
use crate::ffi::{self, Compiled, Model, Tensor};
use crate::ir::Element;
use crate::memory::Kept;
use crate::pages::BLOCK;
use crate::partition::{OpenVinoPartition, Program};
use crate::settings::Settings;
use crate::translate::{CacheForm, Choices, Feed, Translated, translate};

/// One way to compile a translation.
struct Variant {
    properties: Vec<(String, String)>,
    /// What the compiled model is made of.
    manifest: String,
    compiled: Option<Arc<Compiled>>,
}

impl OpenVinoPartition {
    /// The models for steps up to `bounds`: of dynamic extents one for all steps and perhaps one for prompts, or two of
    /// fixed extents.
    pub(crate) fn compile_programs(&mut self, bounds: Bounds) -> Result<Vec<Program>, BackendError> {
        let settings = self.device.settings.clone();
        let plugin = self.device.plugin.clone();
        let base = Choices {
            form: self.device.form(),
            manual_attention: settings.manual_attention(&plugin),
            kind: settings.kind(&plugin),
            keys: cache_element(self.options.keys)?,
            values: cache_element(self.options.values)?,
            ..Choices::default()
        };
        if !settings.is_static(&plugin) {
            let shares_caches = match base.form {
                CacheForm::Host => true,
                CacheForm::Paged => [base.keys, base.values] == [Element::F16; 2],
                CacheForm::Stateful => false,
            };
            let prompts = shares_caches && settings.has_prompt_model(&plugin, ffi::has_tiles());
            return self.compile_translation(base, prompts);
        }
        // Where rows see later ones, a text cannot be cut.
        let whole = self.sees_later_rows();
        let chunk = if whole { bounds.tokens } else { settings.chunk().min(bounds.tokens) }.max(1);
        let mut programs = Vec::new();
        for tokens in [chunk, 1] {
            if programs.is_empty() || chunk > 1 {
                let choices = Choices {
                    tokens: Some(tokens as u64),
                    outputs: Some(bounds.outputs.min(tokens).max(1) as u64),
                    cells: Some(self.options.cells.iter().map(|cells| *cells as u64).collect()),
                    ..base.clone()
                };
                programs.extend(self.compile_translation(choices, false)?);
            }
        }
        Ok(programs)
    }

    fn sees_later_rows(&self) -> bool {
        let nodes = &self.segment.graph.nodes[self.segment.nodes.clone()];
        nodes.iter().any(|node| match &node.op {
            Op::Attention(op) => matches!(op.mask, MaskRule::Bidirectional | MaskRule::SymmetricWindow(_)),
            _ => false,
        })
    }

    /// Compiles one translation, with `prompts` a second time for prompts.
    fn compile_translation(&mut self, choices: Choices, prompts: bool) -> Result<Vec<Program>, BackendError> {
        let device = self.device.clone();
        let start = Instant::now();
        let mut translated = translate(&self.segment, &self.weights, &choices);
        let translation = start.elapsed();
        self.dump(&translated, &choices)?;
        let mut variants = self.variants(&choices, prompts);
        self.find_compiled(&mut variants);
        if variants.iter().any(|variant| variant.compiled.is_none()) {
            self.compile_missing(&mut translated, &mut variants, choices.form, translation)?;
        }
        if device.settings.releases_weights(&device.plugin) {
            self.used_weights().into_iter().for_each(|weight| self.weights.release(weight));
        }
        let mut programs = Vec::new();
        for (index, compiled) in variants.into_iter().filter_map(|variant| variant.compiled).enumerate() {
            let is_for_prompts = index == 1;
            if let Err(error) = self.take_block_types(&compiled, &translated.feeds, is_for_prompts) {
                if is_for_prompts {
                    device.log(&format!("prompts have no model of their own: {error}"));
                    continue;
                }
                return Err(error);
            }
            let request = compiled.request().map_err(|error| self.failed(format!("compiling: {error}")))?;
            let named = |name: String| CString::new(name).unwrap_or_default();
            let feeds = translated.feeds.iter().map(|feed| (feed.clone(), named(feed.name())));
            let products = translated.products.iter().map(|product| (*product, named(product.name())));
            programs.push(Program {
                compiled,
                request,
                is_for_prompts,
                choices: choices.clone(),
                constants: translated.blob.length(),
                feeds: feeds.collect(),
                products: products.collect(),
                ropes: translated.ropes.clone(),
            });
        }
        Ok(programs)
    }

    /// Writes what the environment asks for into the current folder.
    fn dump(&self, translated: &Translated, choices: &Choices) -> Result<(), BackendError> {
        let write = |name: &str, text: &str| {
            std::fs::write(Path::new(name), text).map_err(|error| self.failed(format!("{name}: {error}")))
        };
        if self.device.settings.dump_graph {
            write("cgraph_ov.txt", &self.segment.graph.to_string())?;
        }
        if self.device.settings.dump_ir {
            let extents = choices.tokens.map_or("dynamic".to_owned(), |tokens| tokens.to_string());
            write(&format!("model_{}_{extents}.xml", self.segment.nodes.start), &translated.model.to_xml())?;
        }
        Ok(())
    }

    fn variants(&self, choices: &Choices, prompts: bool) -> Vec<Variant> {
        let device = &self.device;
        let mut properties = Vec::new();
        if choices.form != CacheForm::Host {
            properties.push(("KEY_CACHE_PRECISION".to_owned(), choices.keys.name().to_owned()));
            properties.push(("VALUE_CACHE_PRECISION".to_owned(), choices.values.name().to_owned()));
        }
        properties.extend(device.settings.properties(&device.plugin, device.threads));
        let for_prompts = prompts.then(|| Settings::prompt_properties(&properties));
        std::iter::once(properties)
            .chain(for_prompts)
            .map(|properties| {
                let compiled_for = format!("{} {} {properties:?}", ffi::version(), device.plugin);
                let manifest = manifest(&self.segment, self.weights.as_ref(), choices, &compiled_for);
                Variant { properties, manifest, compiled: None }
            })
            .collect()
    }

    /// Looks for compiled models in this process and in the folder of compiled models.
    fn find_compiled(&self, variants: &mut [Variant]) {
        let device = &self.device;
        let start = Instant::now();
        let find = |variant: &Variant| {
            if !device.settings.disable_cache
                && let Some(shared) = device.shared.find(&variant.manifest)
            {
                device.profile(|| "compiled model shared within the process".to_owned());
                return Some(shared);
            }
            let folder = self.compiled_model_folder()?;
            let bytes = Entry::new(folder, &variant.manifest).find()?;
            // A file that the library refuses is one that is not there.
            let compiled = device.core.import(&bytes, &device.plugin).ok()?;
            device.profile(|| {
                format!("compiled model found in the cache, imported in {:.2?}", start.elapsed())
            });
            Some(Arc::new(compiled))
        };
        // Importing is work for one thread, so two at once take no longer.
        std::thread::scope(|scope| {
            for variant in variants.iter_mut() {
                scope.spawn(|| variant.compiled = find(variant));
            }
        });
        self.share(variants);
    }

    /// Where compiled models are kept. Those that have variables end the process inside of OpenVINO 2026.4.1 when they are
    /// read back and run, so they are not.
    fn compiled_model_folder(&self) -> Option<&Path> {
        let folder = self.device.settings.compiled_model_folder.as_deref();
        folder.filter(|_| self.device.form() != CacheForm::Stateful)
    }

    /// Lets other partitions of the process find these compiled models.
    fn share(&self, variants: &[Variant]) {
        for variant in variants {
            if let (Some(compiled), false) = (&variant.compiled, self.device.settings.disable_cache) {
                self.device.shared.keep(&variant.manifest, compiled);
            }
        }
    }

    /// Makes the constants, reads the model and compiles what was not found.
    fn compile_missing(
        &self,
        translated: &mut Translated,
        variants: &mut [Variant],
        form: CacheForm,
        translation: Duration,
    ) -> Result<(), BackendError> {
        let device = &self.device;
        let start = Instant::now();
        let constants = translated.blob.length();
        let model = self.read(translated, form)?;
        let read = start.elapsed();
        for variant in variants.iter_mut().filter(|variant| variant.compiled.is_none()) {
            let compiled = device
                .core
                .compile(&model, &device.plugin, &variant.properties)
                .map_err(|error| self.failed(format!("compiling: {error}")))?;
            if let Some(folder) = self.compiled_model_folder()
                && let Err(error) = Entry::new(folder, &variant.manifest).keep(|path| compiled.export(path))
            {
                device.log(&format!("the compiled model is not kept: {error}"));
            }
            variant.compiled = Some(Arc::new(compiled));
        }
        self.share(variants);
        device.profile(|| {
            format!(
                "{} layers: translated in {translation:.2?}, {} MB of constants and text read in {read:.2?}, \
                 {} compiled in {:.2?}",
                translated.model.layer_count(),
                constants / 1_000_000,
                variants.len(),
                start.elapsed() - read,
            )
        });
        Ok(())
    }

    /// The library's form of a translation.
    fn read(&self, translated: &mut Translated, form: CacheForm) -> Result<Model, BackendError> {
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
                    self.device.log(&format!("constants stay in memory: {error}"));
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

    /// Gives paged states the element types that the plugin chose. Those of the model for prompts are bf16.
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
                Some(Element::BF16) if fits && is_for_prompts => {}
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
