//! Files with a missing or wrong key or tensor: an error that names something of the file, never a panic.

use std::collections::BTreeMap;
use std::path::Path;

use puna_conformance::zoo;
use puna_gguf::{Array, Header, Metadata, TensorSpec, Tensors, Value};
use puna_graph::Graph;
use puna_models::{BuildOptions, ModelError, Pooling, Purpose, build, unused_tensors};

/// A model of the zoo, without its data.
struct Model {
    name: String,
    header: Header,
    purpose: Purpose,
}

impl Model {
    fn read(name: String, header: &Path, purpose: Purpose) -> Self {
        let bytes = std::fs::read(header).expect("a model has a header");
        Self { name, header: Header::parse(&bytes).expect("the zoo's headers are good"), purpose }
    }

    fn architecture(&self) -> &str {
        self.header.metadata.str("general.architecture").expect("a header has an architecture")
    }

    fn built(&self, metadata: &Metadata, tensors: &Tensors) -> Result<Graph, ModelError> {
        build(
            metadata,
            tensors,
            &BuildOptions { context: 256, purpose: self.purpose, ..BuildOptions::default() },
        )
    }

    /// Keys of the architecture, without its prefix.
    fn keys(&self) -> Vec<String> {
        let prefix = format!("{}.", self.architecture());
        self.header
            .metadata
            .iter()
            .filter_map(|(key, _)| key.strip_prefix(&prefix))
            .map(str::to_owned)
            .collect()
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture())
    }
}

/// Every model of the zoo: decoders, embedders and encoders, draft heads.
fn models() -> Vec<Model> {
    let generate = zoo::models().into_iter().map(|model| {
        let header = model.header().to_owned();
        Model::read(model.name, &header, Purpose::Generate)
    });
    let embed = zoo::embedding_models().into_iter().map(|model| {
        let purpose = match model.recorded.keys().find_map(|kind| Pooling::from_name(kind)) {
            Some(pooling) => Purpose::Embed(Some(pooling)),
            None => Purpose::Generate,
        };
        let header = model.header();
        Model::read(model.name, &header, purpose)
    });
    let drafts = zoo::draft_models().into_iter().map(|model| {
        let header = model.header();
        Model::read(model.name, &header, Purpose::Generate)
    });
    generate.chain(embed).chain(drafts).collect()
}

/// Values that some key may not have.
fn wrong_values(value: &Value) -> Vec<Value> {
    let mut wrong = vec![Value::String("no number".into()), Value::Array(Array::U32(vec![1; 77]))];
    if value.integer().is_some() {
        wrong.extend([0, 1, 7, u32::MAX].map(Value::U32));
        wrong.push(Value::I32(-1));
    }
    if value.float().is_some() {
        wrong.extend([0.0, -1.0, 1e30, f32::NAN, f32::INFINITY].map(Value::F32));
    }
    wrong
}

#[test]
fn a_wrong_key_is_refused_by_name_or_harmless() {
    let mut refused = 0;
    for model in models() {
        for key in model.keys() {
            let mut metadata = model.header.metadata.clone();
            let value = metadata.remove(&model.full(&key)).expect("the key was listed");
            for wrong in wrong_values(&value) {
                metadata.set(model.full(&key), wrong);
                if let Err(error) = model.built(&metadata, &model.header.tensors) {
                    refused += 1;
                    let text = error.to_string();
                    let names = ["tensor ", "key "].iter().any(|kind| text.contains(kind));
                    let fits = matches!(error, ModelError::Graph { .. } | ModelError::Unsuitable { .. });
                    assert!(names || fits, "{}, {key}: {text}", model.name);
                }
            }
        }
    }
    assert!(refused > 1000, "only {refused} wrong keys were refused");
}

/// Names that a part of `docs/architectures.md` lists before a colon.
fn documented(part: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architectures.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let part = page.split(part).nth(1).expect("the page has the part");
    let part = part.split("\n## ").next().unwrap_or(part);
    let rows = part.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: "));
    rows.flat_map(|(keys, _)| keys.split("`, `").map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// One line for each fault, with the models in which it is.
fn assert_none(faults: &BTreeMap<String, Vec<String>>) {
    let line = |(fault, models): (&String, &Vec<String>)| format!("{fault}: {}", models.join(" "));
    let lines: Vec<String> = faults.iter().map(line).collect();
    assert!(lines.is_empty(), "{} faults:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn a_missing_tensor_is_named_or_documented_as_optional() {
    let optional = documented("## Tensors that may be absent");
    let (mut faults, mut named): (BTreeMap<String, Vec<String>>, _) = (BTreeMap::new(), 0);
    for model in models() {
        let whole = model.built(&model.header.metadata, &model.header.tensors);
        let whole = whole.unwrap_or_else(|error| panic!("{}: {error}", model.name));
        let unused = unused_tensors(&whole, &model.header.tensors);
        for missing in model.header.tensors.iter().filter(|tensor| !unused.contains(&tensor.name.as_str())) {
            let others = model.header.tensors.iter().filter(|tensor| tensor.name != missing.name);
            let specs: Vec<TensorSpec> = others.map(TensorSpec::from).collect();
            let tensors = Tensors::from_specs(&specs).expect("the zoo's tensors are good");
            let fault = match model.built(&model.header.metadata, &tensors) {
                Err(error) if error.to_string().contains(&missing.name) => {
                    named += 1;
                    continue;
                }
                _ if is_optional(&missing.name, &optional) => continue,
                Ok(_) => "may be absent".to_owned(),
                Err(error) => error.to_string(),
            };
            faults
                .entry(format!("{} {fault}", without_layer(&missing.name)))
                .or_default()
                .push(model.name.clone());
        }
    }
    assert_none(&faults);
    assert!(named > 3000, "only {named} tensors were missed");
}

/// A tensor's name without its layer.
fn without_layer(name: &str) -> &str {
    let layers = ["blk.", "enc.blk.", "dec.blk."];
    let rest = layers.iter().find_map(|prefix| name.strip_prefix(prefix));
    rest.and_then(|rest| rest.split_once('.')).map_or(name, |(_, name)| name)
}

/// Whether the page lists the tensor, or all biases.
fn is_optional(name: &str, listed: &[String]) -> bool {
    let name = without_layer(name);
    listed.iter().any(|other| match other.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => other == name,
    })
}

#[test]
fn a_dropped_key_is_named_or_has_a_documented_default() {
    let defaults = documented("## Keys that may be absent");
    let (mut faults, mut named): (BTreeMap<String, Vec<String>>, _) = (BTreeMap::new(), 0);
    for model in models() {
        for key in model.keys() {
            let mut metadata = model.header.metadata.clone();
            let value = metadata.remove(&model.full(&key)).expect("the key was listed");
            let has_default = defaults.contains(&key);
            let mut add = |fault: String| faults.entry(fault).or_default().push(model.name.clone());
            match model.built(&metadata, &model.header.tensors) {
                Ok(_) if has_default => {}
                Ok(_) => add(format!("{key} has an undocumented default")),
                // Another size follows from the default, which the file's tensors do not have.
                Err(error)
                    if has_default
                        && ["tensor ", "key "].iter().any(|kind| error.to_string().contains(kind)) => {}
                Err(error) if error.to_string().contains(&key) => named += 1,
                Err(error) => add(format!("without {key}: {error}")),
            }
            if !matches!(value, Value::Array(_)) {
                continue;
            }
            metadata.set(model.full(&key), Value::Array(Array::U32(vec![1; 77])));
            match model.built(&metadata, &model.header.tensors) {
                Err(error) if error.to_string().contains(&key) => named += 1,
                Err(error) => add(format!("{key} of wrong length: {error}")),
                Ok(_) if UNREAD_ARRAYS.contains(&key.as_str()) => {}
                Ok(_) => add(format!("{key} may have any length")),
            }
        }
    }
    assert_none(&faults);
    assert!(named > 500, "only {named} keys were missed");
}

/// Arrays that say nothing that the tensors do not say: which layers have n-grams, and positions of parts of images.
const UNREAD_ARRAYS: &[&str] = &["ple.layers", "rope.dimension_sections"];

#[test]
fn an_unknown_architecture_is_told_its_nearest_names() {
    let model = models().remove(0);
    let header = &model.header;
    for (wrong, near) in
        [("lama", "llama"), ("qwen-3", "qwen3"), ("deepseek3", "deepseek"), ("Gemma_3", "gemma3")]
    {
        let mut metadata = header.metadata.clone();
        metadata.set("general.architecture", Value::String(wrong.into()));
        let error = model.built(&metadata, &header.tensors).expect_err("is refused").to_string();
        assert!(error.contains(&format!("'{wrong}'")) && error.contains(near), "{error}");
    }
    let mut metadata = header.metadata.clone();
    metadata.remove("general.architecture");
    let error = model.built(&metadata, &header.tensors).expect_err("is refused").to_string();
    assert!(error.contains("general.architecture"), "{error}");
}
