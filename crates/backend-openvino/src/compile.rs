//! From a segment to a compiled model.

use std::ffi::CString;
use std::path::Path;
use std::time::{Duration, Instant};

use puna_backend::{BackendError, Bounds};
use puna_graph::{Operand, WeightId};

use crate::backend::cache_element;
use crate::compiled_cache::Entry;
use crate::ffi::{self, Compiled, Tensor};
use crate::ir::Element;
use crate::memory::Kept;
use crate::pages::BLOCK;
use crate::partition::{OpenVinoPartition, Program};
use crate::translate::{CacheForm, Choices, Feed, Translated, translate};

impl OpenVinoPartition {
    /// The models for steps up to `bounds`: one of dynamic extents, or two of fixed ones.
    pub(crate) fn compile_programs(&mut self, bounds: Bounds) -> Result<Vec<Program>, BackendError> {
        let base = Choices {
            form: self.device.form(),
            manual_attention: self.device.settings.manual_attention(&self.device.plugin),
            keys: cache_element(self.options.keys)?,
            values: cache_element(self.options.values)?,
            ..Choices::default()
        };
        if !self.device.settings.is_static(&self.device.plugin) {
            return Ok(vec![self.compile_program(base)?]);
        }
        let chunk = self.device.settings.chunk().min(bounds.tokens).max(1);
        let mut programs = Vec::new();
        for tokens in [chunk, 1] {
            if programs.is_empty() || chunk > 1 {
                programs.push(self.compile_program(Choices {
                    tokens: Some(tokens as u64),
                    outputs: Some(bounds.outputs.min(tokens).max(1) as u64),
                    cells: Some(self.options.cells.iter().map(|cells| *cells as u64).collect()),
                    ..base.clone()
                })?);
            }
        }
        Ok(programs)
    }

    fn compile_program(&mut self, choices: Choices) -> Result<Program, BackendError> {
        let device = self.device.clone();
        let failed = |what: &str, reason: String| BackendError::Device {
            device: device.name.clone(),
            reason: format!("{what}: {reason}"),
        };
        let start = Instant::now();
        let mut translated = translate(&self.segment, &self.weights, &choices);
        let translation = start.elapsed();
        if device.settings.dump_graph {
            let text = self.segment.graph.to_string();
            write_beside(Path::new("cgraph_ov.txt"), &text)
                .map_err(|error| failed("cgraph_ov.txt", error))?;
        }
        if device.settings.dump_ir {
            let extents = choices.tokens.map_or("dynamic".to_owned(), |tokens| tokens.to_string());
            let name = format!("model_{}_{extents}.xml", self.segment.nodes.start);
            write_beside(Path::new(&name), &translated.model.to_xml())
                .map_err(|error| failed(&name, error))?;
        }
        let mut properties = Vec::new();
        if choices.form != CacheForm::Host {
            properties.push(("KEY_CACHE_PRECISION".to_owned(), choices.keys.name().to_owned()));
            properties.push(("VALUE_CACHE_PRECISION".to_owned(), choices.values.name().to_owned()));
        }
        properties.extend(device.settings.properties(&device.plugin, device.threads));
        let entry = device.settings.compiled_model_folder.as_ref().map(|folder| {
            let compiled_for = format!("{} {} {properties:?}", ffi::version(), device.plugin);
            Entry::new(folder, &self.segment, self.weights.as_ref(), &choices, &compiled_for)
        });
        let found = entry.as_ref().and_then(Entry::find);
        // A file that the library refuses is one that is not there.
        let imported = found.and_then(|bytes| device.core.import(&bytes, &device.plugin).ok());
        let compiled = match imported {
            Some(compiled) => {
                device.profile(|| {
                    format!("compiled model found in the cache, imported in {:.2?}", start.elapsed())
                });
                compiled
            }
            None => {
                let compiled =
                    self.compile_translated(&mut translated, &properties, choices.form, translation)?;
                if let Some(entry) = entry
                    && let Err(error) = entry.keep(|path| compiled.export(path))
                {
                    device.log(&format!("the compiled model is not kept: {error}"));
                }
                compiled
            }
        };
        self.take_block_types(&compiled, &translated.feeds)?;
        let request = compiled.request().map_err(|error| failed("compiling", error))?;
        let named = |name: String| CString::new(name).unwrap_or_default();
        Ok(Program {
            compiled,
            request,
            choices,
            constants: translated.blob.length(),
            feeds: translated.feeds.into_iter().map(|feed| (feed.clone(), named(feed.name()))).collect(),
            products: translated
                .products
                .into_iter()
                .map(|product| (product, named(product.name())))
                .collect(),
            ropes: translated.ropes,
        })
    }

    /// Makes the constants, reads the model and compiles it.
    fn compile_translated(
        &self,
        translated: &mut Translated,
        properties: &[(String, String)],
        form: CacheForm,
        translation: Duration,
    ) -> Result<Compiled, BackendError> {
        let device = &self.device;
        let failed = |what: &str, reason: String| self.failed(format!("{what}: {reason}"));
        let start = Instant::now();
        let xml = translated.model.to_xml();
        let constants = translated.blob.length();
        let tensor = Tensor::filled(constants, |bytes| translated.blob.fill(bytes));
        let tensor = tensor.map_err(|error| failed("constants", error))?;
        if device.settings.reduces_memory() {
            self.used_weights().into_iter().for_each(|weight| self.weights.release(weight));
        }
        let filled = start.elapsed();
        let mut model = device.core.read(&xml, tensor).map_err(|error| failed("reading", error))?;
        if let (CacheForm::Paged, Some(shim)) = (form, &device.shim) {
            model.page(shim).map_err(|error| failed("paged attention", error))?;
        }
        let read = start.elapsed();
        let compiled = device
            .core
            .compile(&model, &device.plugin, properties)
            .map_err(|error| failed("compiling", error))?;
        device.profile(|| {
            format!(
                "{} layers: translated in {translation:.2?}, {} MB of constants in {filled:.2?}, read in {:.2?}, \
                 compiled in {:.2?}",
                translated.model.layer_count(),
                constants / 1_000_000,
                read - filled,
                start.elapsed() - read,
            )
        });
        Ok(compiled)
    }

    /// Gives paged states the element types that the plugin chose.
    fn take_block_types(&mut self, compiled: &Compiled, feeds: &[Feed]) -> Result<(), BackendError> {
        for feed in feeds {
            let (Feed::KeyBlocks(state) | Feed::ValueBlocks(state)) = feed else { continue };
            let name = feed.name();
            let (element, shape) = compiled.input_type(&name).map_err(|error| self.failed(error))?;
            let Some(Kept::Paged { keys, values }) = self.kept.get_mut(state.index()) else { continue };
            let blocks = if matches!(feed, Feed::KeyBlocks(_)) { keys } else { values };
            let expected = blocks.shape().into_iter().map(i64::unsigned_abs);
            let fits = shape.iter().zip(expected).skip(1).all(|(found, expected)| *found == Some(expected));
            match element {
                Some(element @ (Element::F32 | Element::F16 | Element::BF16)) if fits => {
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

    fn used_weights(&self) -> Vec<WeightId> {
        let nodes = &self.segment.graph.nodes[self.segment.nodes.clone()];
        let operands = nodes.iter().flat_map(|node| &node.inputs);
        operands
            .filter_map(|operand| match operand {
                Operand::Weight(weight) => Some(*weight),
                _ => None,
            })
            .collect()
    }
}

fn write_beside(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| error.to_string())
}
