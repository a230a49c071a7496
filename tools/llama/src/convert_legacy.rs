//! `llama convert-legacy`: llama files from before GGUF (`ggml`, `ggmf`, `ggjt`).

use crate::failure::Failure;
use crate::interrupt;
use crate::invocation::Invocation;
use crate::shards::{self, Output};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};
use puna_gguf::{Mapping, Metadata, TensorSpec, Value};
use puna_quant::DType;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Flags of `convert-legacy`.
pub const SPEC: Spec<Config> = Spec {
    name: "convert-legacy",
    tool: ToolSet::CONVERT_LEGACY,
    about: "Write a llama file from before GGUF (ggml, ggmf, ggjt) as a GGUF file",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "INPUT OUTPUT",
        help: "Old file, and the file to write",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// More layers and tokens than any of these files has.
const MOST_LAYERS: u32 = 512;
const MOST_TOKENS: u32 = 1 << 24;

/// Versions of the format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Version {
    /// Tokens without scores, data wherever it falls.
    Ggml,
    Ggmf,
    /// Data at multiples of 32 bytes.
    Ggjt1,
    /// Other blocks.
    Ggjt2,
    /// Blocks as in GGUF.
    Ggjt3,
}

/// Sizes in the header.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sizes {
    vocabulary: u32,
    width: u32,
    heads: u32,
    layers: u32,
    rotated: u32,
}

/// One tensor.
#[derive(Clone, PartialEq, Debug)]
struct Entry {
    spec: TensorSpec,
    range: Range<usize>,
}

/// A file, taken apart.
#[derive(Clone, PartialEq, Debug)]
struct Legacy {
    sizes: Sizes,
    tokens: Vec<(Vec<u8>, f32)>,
    tensors: Vec<Entry>,
}

/// `llama convert-legacy`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let [input, output] = config.positional.as_slice() else {
        return Err(invocation.usage("expected INPUT OUTPUT"));
    };
    let (input, output) = (PathBuf::from(input), PathBuf::from(output));
    let mapping = Mapping::open(&input)?;
    let legacy = Legacy::read(mapping.bytes())
        .map_err(|reason| Failure::Failed(format!("{}: {reason}", input.display())))?;
    let metadata = legacy.metadata(&config, &input)?;
    interrupt::install();
    let bytes = legacy.tensors.iter().map(|entry| entry.range.len() as u64).sum();
    let specs = legacy.tensors.iter().map(|entry| entry.spec.clone()).collect();
    let mut written =
        Output::new(shards::plan(&output, &metadata, vec![specs])?, std::slice::from_ref(&input))?;
    let bar = console.progress(Some(bytes));
    for entry in &legacy.tensors {
        written.copy(mapping.bytes().get(entry.range.clone()).unwrap_or(&[]), &bar)?;
    }
    bar.finish_and_clear();
    written.finish()?;
    console.info(&format!("wrote {} tensors to {}", legacy.tensors.len(), output.display()));
    Ok(())
}

/// Reads from the front.
struct Reader<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.place.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("it is cut off at byte {}", self.bytes.len()))?;
        let taken = self.bytes.get(self.place..end).unwrap_or(&[]);
        self.place = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, String> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }
}

impl Legacy {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader { bytes, place: 0 };
        let magic = reader.number()?;
        let version = match magic {
            0x6767_6d6c => Version::Ggml,
            0x6767_6d66 | 0x6767_6a74 => match (magic, reader.number()?) {
                (0x6767_6d66, 1) => Version::Ggmf,
                (0x6767_6a74, 1) => Version::Ggjt1,
                (0x6767_6a74, 2) => Version::Ggjt2,
                (0x6767_6a74, 3) => Version::Ggjt3,
                (_, other) => return Err(format!("its version {other} is not known")),
            },
            0x4655_4747 => return Err("it is a GGUF file already".into()),
            _ => return Err("it is no llama file from before GGUF".into()),
        };
        let mut next = || reader.number();
        let [vocabulary, width, _, heads, layers, rotated, _] =
            [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
        let sizes = Sizes { vocabulary, width, heads, layers, rotated };
        if heads == 0 || width == 0 || !(1..=MOST_LAYERS).contains(&layers) || vocabulary > MOST_TOKENS {
            return Err(format!("its sizes are absurd: {sizes:?}"));
        }
        let mut tokens = Vec::new();
        for _ in 0..vocabulary {
            let length = reader.number()?;
            let text = reader.take(length as usize)?.to_vec();
            let score = if version == Version::Ggml { 0.0 } else { f32::from_bits(reader.number()?) };
            tokens.push((text, score));
        }
        let mut tensors = Vec::new();
        while reader.place < bytes.len() {
            tensors.push(Self::tensor(&mut reader, version)?);
        }
        if tensors.is_empty() {
            return Err("it has no tensors".into());
        }
        Ok(Self { sizes, tokens, tensors })
    }

    fn tensor(reader: &mut Reader<'_>, version: Version) -> Result<Entry, String> {
        let (axes, length, format) = (reader.number()?, reader.number()?, reader.number()?);
        if !(1..=2).contains(&axes) {
            return Err(format!("a tensor has {axes} axes"));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.insert(0, u64::from(reader.number()?));
        }
        let name = reader.take(length as usize)?;
        let name = std::str::from_utf8(name).map_err(|_| "a tensor's name is no text")?;
        let name = renamed(name)
            .ok_or_else(|| format!("tensor {:?} is not known", name.chars().take(80).collect::<String>()))?;
        let dtype = DType::from_id(format).ok_or_else(|| format!("tensor {name} has an unknown format"))?;
        if !matches!(dtype, DType::F32 | DType::F16) && version < Version::Ggjt3 {
            return Err(format!(
                "tensor {name} is {dtype} in an older layout ({version:?}) that cannot be read: make the file anew from \
                 its f16 form"
            ));
        }
        if version >= Version::Ggjt1 {
            let padding = reader.place.next_multiple_of(32) - reader.place;
            reader.take(padding)?;
        }
        let spec = TensorSpec { name, dtype, shape };
        let bytes = spec.byte_len().map_err(|error| error.to_string())?;
        let start = reader.place;
        reader.take(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(Entry { spec, range: start..reader.place })
    }

    /// Rows of a tensor.
    fn rows(&self, name: &str) -> Result<u64, Failure> {
        let entry = self.tensors.iter().find(|entry| entry.spec.name == name);
        let rows = entry.and_then(|entry| entry.spec.shape.first().copied());
        rows.ok_or_else(|| Failure::Failed(format!("there is no tensor {name}")))
    }

    fn metadata(&self, config: &Config, input: &Path) -> Result<Metadata, Failure> {
        let flags = &config.convert_legacy;
        let head = u64::from(self.sizes.width / self.sizes.heads).max(1);
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        if let Some(name) = input.file_stem() {
            metadata.set("general.name", name.to_string_lossy().into_owned());
        }
        let mut set = |key: &str, value: Value| metadata.set(format!("llama.{key}"), value);
        set("context_length", Value::U32(flags.context));
        set("embedding_length", Value::U32(self.sizes.width));
        set("block_count", Value::U32(self.sizes.layers));
        set("feed_forward_length", Value::U32(self.rows("blk.0.ffn_up.weight")? as u32));
        set("rope.dimension_count", Value::U32(self.sizes.rotated));
        set("attention.head_count", Value::U32(self.sizes.heads));
        set("attention.head_count_kv", Value::U32((self.rows("blk.0.attn_k.weight")? / head) as u32));
        set("attention.layer_norm_rms_epsilon", Value::F32(flags.epsilon));
        metadata.set("tokenizer.ggml.model", "llama");
        let mut texts = Vec::new();
        let mut kinds = Vec::new();
        for (id, (bytes, _)) in self.tokens.iter().enumerate() {
            // The first tokens are those of every SentencePiece model of this family.
            let (text, kind) = match id {
                0 => ("<unk>".to_owned(), 2),
                1 => ("<s>".to_owned(), 3),
                2 => ("</s>".to_owned(), 3),
                3..=258 => (format!("<0x{:02X}>", id - 3), 6),
                _ => (String::from_utf8_lossy(bytes).replace(' ', "▁"), 1),
            };
            texts.push(text);
            kinds.push(kind);
        }
        metadata.set("tokenizer.ggml.tokens", texts);
        metadata
            .set("tokenizer.ggml.scores", self.tokens.iter().map(|(_, score)| *score).collect::<Vec<f32>>());
        metadata.set("tokenizer.ggml.token_type", kinds);
        metadata.set("tokenizer.ggml.bos_token_id", 1u32);
        metadata.set("tokenizer.ggml.eos_token_id", 2u32);
        metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
        Ok(metadata)
    }
}

/// Old names of tensors and their new ones; `L` stands for the layer.
const NAMES: &[(&str, &str)] = &[
    ("attention_norm.weight", "attn_norm.weight"),
    ("attention.wq.weight", "attn_q.weight"),
    ("attention.wk.weight", "attn_k.weight"),
    ("attention.wv.weight", "attn_v.weight"),
    ("attention.wo.weight", "attn_output.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("feed_forward.w1.weight", "ffn_gate.weight"),
    ("feed_forward.w2.weight", "ffn_down.weight"),
    ("feed_forward.w3.weight", "ffn_up.weight"),
];

fn renamed(name: &str) -> Option<String> {
    match name {
        "tok_embeddings.weight" => return Some("token_embd.weight".into()),
        "norm.weight" => return Some("output_norm.weight".into()),
        "output.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok().filter(|layer| *layer < MOST_LAYERS)?;
    let (_, new) = NAMES.iter().find(|(old, _)| *old == rest)?;
    Some(format!("blk.{layer}.{new}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one layer; `magic` and perhaps a version begin it.
    fn sample(begin: &[u32], aligned: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let number = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_le_bytes());
        for word in begin.iter().chain(&[2, 4, 256, 2, 1, 2, 0]) {
            number(&mut bytes, *word);
        }
        for text in ["a", "b"] {
            number(&mut bytes, text.len() as u32);
            bytes.extend(text.as_bytes());
            if begin.len() > 1 {
                bytes.extend(0.5f32.to_le_bytes());
            }
        }
        for (name, shape) in
            [("layers.0.attention.wk.weight", vec![4, 2]), ("layers.0.feed_forward.w3.weight", vec![4, 6])]
        {
            for word in [2, name.len() as u32, 0].into_iter().chain(shape.clone()) {
                number(&mut bytes, word);
            }
            bytes.extend(name.as_bytes());
            if aligned {
                bytes.resize(bytes.len().next_multiple_of(32), 0);
            }
            bytes.resize(bytes.len() + 4 * shape.iter().product::<u32>() as usize, 1);
        }
        bytes
    }

    #[test]
    fn all_versions_are_read() {
        for (begin, aligned) in [
            (&[0x6767_6d6c][..], false),
            (&[0x6767_6d66, 1], false),
            (&[0x6767_6a74, 1], true),
            (&[0x6767_6a74, 3], true),
        ] {
            let legacy = Legacy::read(&sample(begin, aligned)).expect("it is sound");
            assert_eq!((legacy.tokens.len(), legacy.tensors.len()), (2, 2));
            assert_eq!(legacy.tensors[0].spec.name, "blk.0.attn_k.weight");
            assert_eq!(legacy.tensors[0].spec.shape, [2, 4]);
            let metadata =
                legacy.metadata(&Config::default(), Path::new("old.bin")).expect("it has what is needed");
            assert_eq!(metadata.u32("llama.attention.head_count_kv").unwrap(), 1);
            assert_eq!(metadata.u32("llama.feed_forward_length").unwrap(), 6);
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        let good = sample(&[0x6767_6a74, 3], true);
        // At the end of a tensor the file is whole again.
        let ends = (0..good.len()).filter(|length| Legacy::read(&good[..*length]).is_ok()).count();
        assert!(ends <= 1, "{ends}");
        assert!(Legacy::read(&sample(&[0x6767_6a74, 9], true)).is_err());
        assert!(Legacy::read(b"GGUF....").is_err() && Legacy::read(&[0xff; 64]).is_err());
        for place in (8..36).step_by(4) {
            let mut bytes = good.clone();
            bytes[place..place + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            // Sizes that are not used for reading may have any value.
            let _ = Legacy::read(&bytes);
        }
        assert_eq!(renamed("layers.9999.ffn_norm.weight"), None);
        assert_eq!(renamed("../x"), None);
    }
}
