//! Architectures whose classes `transformers` lacks. A tiny model of the zoo, whose logits are known to be right, is written as the
//! folder that its publisher would have made, with names and layouts that stand in the files beside this one and are not taken from the
//! converter. Converted it has to be the same graph with the same weights.

mod cases;
mod recurrent;

use std::collections::BTreeMap;
use std::path::Path;

use puna_conformance::zoo;
use puna_convert::{Conversion, Options};
use puna_gguf::{Bytes, File, Metadata, TensorSpec};
use puna_models::{BuildOptions, Pooling, Purpose};
use puna_quant::DType;

/// One model.
pub struct Case {
    /// Name of its header.
    pub model: &'static str,
    /// `config.json`.
    pub config: &'static str,
    /// Its tensors, the more special names first, but for those of [`cases::COMMON`].
    pub tensors: &'static [Entry],
    /// Tensors that the zoo has and no folder: parts of names.
    pub made_up: &'static [&'static str],
    /// Tensors that the folder has and the file not.
    pub more: &'static [(&'static str, &'static [f32])],
    /// Keys of the zoo that folders cannot have otherwise than this.
    pub change: fn(&mut Metadata),
    /// Whether the folder's layers come in the other order, so that their kinds are where its settings have them.
    pub reversed: bool,
}

/// A case without anything special.
pub const PLAIN: Case =
    Case { model: "", config: "", tensors: &[], made_up: &[], more: &[], change: |_| {}, reversed: false };

/// Tensors of the file and what the folder has for them: `N` is the number of a layer, and names without `.weight` or `.bias` stand
/// for both.
pub struct Entry {
    /// Names in the file; several are one after another in the folder, those with `^T` transposed.
    pub file: &'static [&'static str],
    /// Name in the folder; `#` is the number of an expert, or a letter.
    pub folder: &'static str,
    /// What is otherwise in the folder, in this order.
    pub ways: &'static [Way],
}

/// How the folder's data differs.
#[derive(Clone, Copy)]
pub enum Way {
    /// The first axis counts experts, which have a tensor each.
    Experts,
    /// The first axis counts parts that have these letters.
    Letters(&'static [&'static str]),
    /// Rows of so many heads are in halves, where the file has pairs.
    Halves(usize),
    /// Those of the first so many heads of such a width are.
    FirstHalves(usize, usize),
    /// Equal parts of the first axis are in this order, which is its own inverse.
    Parts(&'static [usize]),
    /// Seen as these extents, the axes are in this order.
    Axes(&'static [usize], &'static [usize]),
    /// The last two axes are exchanged.
    Transposed,
    /// In this shape.
    Shape(&'static [usize]),
    /// Each number is less by this.
    Less(f32),
    /// Each number is this times as large.
    Times(f32),
    /// The second half of the rows of so many heads has the other sign.
    Signs(usize),
    /// The logarithm of the negated number.
    Logarithm,
}

/// A tensor of floats.
#[derive(Clone, Debug)]
struct Tensor {
    shape: Vec<usize>,
    data: Vec<f32>,
}

/// The tensor as it is in the folder.
pub const fn same(file: &'static [&'static str], folder: &'static str) -> Entry {
    Entry { file, folder, ways: &[] }
}

/// With changes.
pub const fn way(file: &'static [&'static str], folder: &'static str, ways: &'static [Way]) -> Entry {
    Entry { file, folder, ways }
}

impl Tensor {
    fn rows(&self) -> usize {
        self.shape[0]
    }

    /// The axes of the data seen as `split` in another order; the shape stays.
    fn reordered(&self, split: &[usize], order: &[usize]) -> Vec<f32> {
        assert_eq!(split.iter().product::<usize>(), self.data.len(), "{split:?}");
        let mut strides = vec![1; split.len()];
        for axis in (0..split.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * split[axis + 1];
        }
        let extents: Vec<usize> = order.iter().map(|axis| split[*axis]).collect();
        (0..self.data.len())
            .map(|place| {
                let mut rest = place;
                let mut from = 0;
                for axis in (0..extents.len()).rev() {
                    from += rest % extents[axis] * strides[order[axis]];
                    rest /= extents[axis];
                }
                self.data[from]
            })
            .collect()
    }

    fn changed(mut self, way: Way) -> Self {
        let rows = self.rows();
        let inner = self.data.len() / rows.max(1);
        match way {
            Way::Experts | Way::Letters(_) => {}
            Way::Halves(heads) => {
                self.data = self.reordered(&[heads, rows / heads / 2, 2, inner], &[0, 2, 1, 3]);
            }
            Way::FirstHalves(heads, dim) => {
                let (first, rest) = self.data.split_at(heads * dim * inner);
                let first = Tensor { shape: vec![heads * dim, inner], data: first.to_vec() };
                let rest = rest.to_vec();
                self.data = first.changed(Way::Halves(heads)).data;
                self.data.extend(rest);
            }
            Way::Parts(order) => {
                let parts: Vec<&[f32]> = self.data.chunks(self.data.len() / order.len()).collect();
                self.data = order.iter().flat_map(|part| parts[*part].to_vec()).collect();
            }
            Way::Axes(split, order) => self.data = self.reordered(split, order),
            Way::Transposed => {
                let count = self.shape.len();
                let (columns, rows) = (self.shape[count - 1], self.shape[count - 2]);
                let outer = self.data.len() / columns / rows;
                self.data = self.reordered(&[outer, rows, columns], &[0, 2, 1]);
                self.shape.swap(count - 1, count - 2);
            }
            Way::Shape(shape) => self.shape = shape.to_vec(),
            Way::Less(amount) => self.data.iter_mut().for_each(|x| *x -= amount),
            Way::Times(factor) => self.data.iter_mut().for_each(|x| *x *= factor),
            Way::Signs(heads) => {
                let half = self.data.len() / heads / 2;
                self.data.chunks_mut(half).skip(1).step_by(2).flatten().for_each(|x| *x = -*x);
            }
            Way::Logarithm => self.data.iter_mut().for_each(|x| *x = (-*x).ln()),
        }
        self
    }
}

fn floats(file: &File, name: &str) -> Tensor {
    let tensor = file.tensors.get(name).expect("the tensor is there");
    assert_eq!(tensor.dtype, DType::F32, "{name}");
    let bytes = file.bytes(tensor).as_chunks().0;
    let data = bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Tensor { shape: tensor.shape.iter().map(|extent| *extent as usize).collect(), data }
}

/// The zoo's model as a folder could have it.
fn zoo_model(case: &Case) -> File {
    let decoders = zoo::models().into_iter().find(|model| model.name == case.model).map(|model| model.open());
    let embedders = || {
        zoo::embedding_models().into_iter().find(|model| model.name == case.model).map(|model| model.open())
    };
    let drafts =
        || zoo::draft_models().into_iter().find(|model| model.name == case.model).map(|model| model.open());
    let file = decoders.or_else(embedders).or_else(drafts).expect(case.model);
    let mut metadata = file.metadata.clone();
    (case.change)(&mut metadata);
    let layers = layers(&file);
    let kept =
        file.tensors.iter().filter(|tensor| !case.made_up.iter().any(|part| tensor.name.contains(part)));
    let parts = kept.map(|tensor| {
        let name = match layer_of(&tensor.name) {
            Some((layer, rest)) if case.reversed => format!("blk.{}.{rest}", layers - 1 - layer),
            _ => tensor.name.clone(),
        };
        let spec = TensorSpec { name, dtype: tensor.dtype, shape: tensor.shape.clone() };
        (spec, Bytes::Owned(file.bytes(tensor).to_vec()))
    });
    File::from_parts(metadata, parts.collect()).expect("the model is good")
}

fn layers(file: &File) -> usize {
    file.tensors
        .iter()
        .filter_map(|tensor| layer_of(&tensor.name))
        .map(|(layer, _)| layer + 1)
        .max()
        .unwrap_or(0)
}

fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

/// The tensors of the folder: for each entry and layer those whose parts are all there.
fn folder_tensors(case: &Case, file: &File) -> BTreeMap<String, Tensor> {
    let mut found = BTreeMap::new();
    let mut taken: Vec<String> = Vec::new();
    let per_layer = |entry: &Entry| entry.file[0].contains(".N.");
    for entry in case.tensors.iter().chain(cases::COMMON) {
        let count = if per_layer(entry) { layers(file) } else { 1 };
        for layer in 0..count {
            for ending in ["", ".weight", ".bias"] {
                let number = format!(".{layer}.");
                let whole_name =
                    |name: &&str| format!("{}{ending}", name.trim_end_matches("^T").replace(".N.", &number));
                let names: Vec<String> = entry.file.iter().map(whole_name).collect();
                let is_new = |name: &String| file.tensors.get(name).is_some() && !taken.contains(name);
                if !names.iter().all(is_new) {
                    continue;
                }
                let part = |(name, listed): (&String, &&str)| match listed.ends_with("^T") {
                    true => floats(file, name).changed(Way::Transposed),
                    false => floats(file, name),
                };
                let parts: Vec<Tensor> = names.iter().zip(entry.file).map(part).collect();
                taken.extend(names);
                let shape = match parts.as_slice() {
                    [one] => one.shape.clone(),
                    _ => {
                        let rows = parts.iter().map(Tensor::rows).sum();
                        std::iter::once(rows).chain(parts[0].shape.iter().skip(1).copied()).collect()
                    }
                };
                let whole = Tensor { shape, data: parts.into_iter().flat_map(|part| part.data).collect() };
                let name = format!("{}{ending}", entry.folder.replace(".N.", &number));
                put(&mut found, &name, whole, entry.ways);
            }
        }
    }
    for (name, data) in case.more {
        found.insert((*name).to_owned(), Tensor { shape: vec![data.len()], data: data.to_vec() });
    }
    found
}

fn put(found: &mut BTreeMap<String, Tensor>, name: &str, whole: Tensor, ways: &[Way]) {
    let letters = match ways.first() {
        Some(Way::Experts) => (0..whole.rows()).map(|expert| expert.to_string()).collect(),
        Some(Way::Letters(letters)) => letters.iter().map(|letter| (*letter).to_owned()).collect(),
        _ => {
            let changed = ways.iter().fold(whole, |tensor, way| tensor.changed(*way));
            assert!(found.insert(name.to_owned(), changed).is_none(), "{name} twice");
            return;
        }
    };
    let letters: Vec<String> = letters;
    let each = whole.data.len() / letters.len();
    for (letter, data) in letters.iter().zip(whole.data.chunks(each)) {
        let part = Tensor { shape: whole.shape[1..].to_vec(), data: data.to_vec() };
        let changed = ways[1..].iter().fold(part, |tensor, way| tensor.changed(*way));
        assert!(found.insert(name.replace('#', letter), changed).is_none(), "{name} twice");
    }
}

/// A tensor as a file of the folder has it: format, extents, bytes.
type Stored = (&'static str, Vec<usize>, Vec<u8>);

fn stored(tensors: BTreeMap<String, Tensor>) -> BTreeMap<String, Stored> {
    let bytes = |tensor: &Tensor| tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensors.into_iter().map(|(name, tensor)| (name, ("F32", tensor.shape.clone(), bytes(&tensor)))).collect()
}

fn write_folder(folder: &Path, config: &str, tensors: &BTreeMap<String, Stored>) {
    let config: serde_json::Value = serde_json::from_str(config).expect("the settings are JSON");
    std::fs::write(folder.join("config.json"), config.to_string()).expect("it is written");
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, (format, shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend(bytes);
        let entry = serde_json::json!({"dtype": format, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::write(folder.join("model.safetensors"), bytes).expect("it is written");
}

/// What differs between the zoo's model and the converted one.
fn differences(case: &Case) -> Result<(), String> {
    let expected = zoo_model(case);
    let folder = tempfile::tempdir().expect("a folder");
    write_folder(folder.path(), case.config, &stored(folder_tensors(case, &expected)));
    let conversion =
        Conversion::open(folder.path(), &Options::default()).map_err(|error| error.to_string())?;
    let found = conversion.into_file().map_err(|error| error.to_string())?;
    let architecture = |file: &File| file.metadata.str("general.architecture").unwrap_or_default().to_owned();
    if architecture(&found) != architecture(&expected) {
        return Err(format!("it became {}", architecture(&found)));
    }
    let only_embeds = zoo::embedding_models().iter().any(|model| model.name == case.model)
        && expected.tensors.get("output.weight").is_none();
    let purpose = if only_embeds { Purpose::Embed(Some(Pooling::Mean)) } else { Purpose::Generate };
    let options = BuildOptions { context: 64, purpose, ..BuildOptions::default() };
    let build = |file: &File| {
        puna_models::build(&file.metadata, &file.tensors, &options).map_err(|error| error.to_string())
    };
    let (expected_graph, found_graph) = (build(&expected).expect("the zoo's models build"), build(&found)?);
    if expected_graph.nodes != found_graph.nodes || expected_graph.states != found_graph.states {
        let pairs = expected_graph.nodes.iter().zip(&found_graph.nodes);
        let first = pairs.into_iter().find(|(expected, found)| expected != found);
        return Err(format!("another graph: {first:?}"));
    }
    for weight in &expected_graph.weights {
        let (right, made) = (floats(&expected, &weight.name), floats(&found, &weight.name));
        // Logarithms and shifts round.
        let same = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
        if right.data.len() != made.data.len() || !right.data.iter().zip(&made.data).all(same) {
            return Err(format!("{} is another matrix", weight.name));
        }
    }
    let unused = puna_models::unused_tensors(&found_graph, &found.tensors);
    let known = |name: &&str| expected.tensors.get(name).is_some() || name.contains("time_mix_v");
    match unused.iter().find(|name| !known(name)) {
        Some(name) => Err(format!("{name} is made and not used")),
        None => Ok(()),
    }
}

#[test]
fn models_of_the_zoo_come_back() {
    let mut faults = Vec::new();
    let cases: Vec<&Case> = cases::ATTENTION.iter().chain(recurrent::RECURRENT).collect();
    for case in &cases {
        match differences(case) {
            Ok(()) => println!("{}: the same", case.model),
            Err(reason) => faults.push(format!("{}: {reason}", case.model)),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(cases.len() >= 25, "{}", cases.len());
}

/// Blocks of MXFP4 as the compressed-tensors library has them, neighbours in a byte, and as a model file has them.
fn blocks(data: &[f32]) -> ([Vec<u8>; 2], Vec<u8>) {
    let mut file = vec![0; data.len() / 32 * 17];
    puna_quant::quantize_rows(DType::MXFP4, data, None, &mut file).expect("whole blocks");
    let (mut packed, mut scales) = (Vec::new(), Vec::new());
    for block in file.chunks_exact(17) {
        let code = |index: usize| block[1 + index % 16] >> (index / 16 * 4) & 15;
        scales.push(block[0]);
        packed.extend((0..16).map(|pair| code(2 * pair) | code(2 * pair + 1) << 4));
    }
    ([packed, scales], file)
}

/// Kimi K3 is published with experts in blocks of MXFP4, which are the same numbers in the file.
#[test]
fn experts_in_blocks_come_back() {
    let case = recurrent::RECURRENT.iter().find(|case| case.model == "kimi-k3-moe").expect("a case");
    let mut tensors = stored(folder_tensors(case, &zoo_model(case)));
    let experts: Vec<String> = tensors.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    assert_eq!(experts.len(), 6);
    let mut right: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for name in &experts {
        let (_, shape, bytes) = tensors.remove(name).expect("it is there");
        let data: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let ([packed, scales], file) = blocks(&data);
        tensors.insert(format!("{name}_packed"), ("U8", vec![shape[0], shape[1] / 2], packed));
        tensors.insert(format!("{name}_scale"), ("U8", vec![shape[0], shape[1] / 32], scales));
        let parts = [("w1", "gate"), ("w2", "down"), ("w3", "up")];
        let (_, part) = parts.iter().find(|(letter, _)| name.contains(letter)).expect("one of three");
        right.entry(part).or_default().extend(file);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let method = r#"{"quantization_config": {"quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized"}, "#;
    let config = case.config.replacen('{', method, 1);
    write_folder(folder.path(), &config, &tensors);
    let conversion = Conversion::open(folder.path(), &Options::default()).expect("it converts");
    let found = conversion.into_file().expect("it is a model");
    for (part, right) in right {
        let tensor = found.tensors.get(&format!("blk.1.ffn_{part}_exps.weight")).expect("experts");
        assert_eq!((tensor.dtype, &tensor.shape[..]), (DType::MXFP4, &[2, 192, 192][..]));
        assert!(found.bytes(tensor) == right, "{part}");
    }
    // Without its scales a tensor is refused by name.
    tensors.remove(&format!("{}_scale", experts[0]));
    write_folder(folder.path(), &config, &tensors);
    let error = Conversion::open(folder.path(), &Options::default()).expect_err("no scales").to_string();
    assert!(error.contains("experts.0.w1.weight_packed") && error.contains("weight_scale"), "{error}");
}
