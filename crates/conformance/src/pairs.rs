//! Small models with draft heads that guess for them, or with a layer of their own that does: by chance, or right by
//! construction.
//!
//! The models that are not random say after token `v` always the same token, [`Pair::next`]: their branches give nothing, so
//! that logits come from the embedding of the last token alone. Rows of embeddings are as long as each other and nearly at
//! right angles, so that the nearest row is the one that is meant.

use std::sync::Arc;

use puna_gguf::{Array, Bytes, File, Metadata, TensorSpec, Value};
use puna_quant::DType;

use crate::zoo::{ahead_models, element};

/// Tokens that exist.
pub const VOCABULARY: u32 = 64;
const WIDTH: u32 = 32;
const LAYERS: u32 = 3;
const HEADS: u32 = 2;
const HEAD: u32 = 16;

/// Keys of a file.
pub type Keys = Metadata;

/// A model and a head that guesses for it.
pub struct Pair {
    /// What it is.
    pub name: &'static str,
    /// The model.
    pub target: Arc<File>,
    /// The head.
    pub head: Arc<File>,
    /// Tokens of a guess that are right whatever the text; none if nothing is known.
    pub right: Option<usize>,
    step: fn(u32) -> u32,
}

impl Pair {
    /// The same with other keys in the head's file.
    pub fn with_head_keys(&self, change: &dyn Fn(&mut Keys)) -> Self {
        let mut metadata = self.head.metadata.clone();
        change(&mut metadata);
        let tensors = self.head.tensors.iter();
        let parts = tensors.map(|info| (info.into(), Bytes::Owned(self.head.bytes(info).to_vec()))).collect();
        let head = Arc::new(File::from_parts(metadata, parts).expect("the tensors are good"));
        Self { head, target: self.target.clone(), ..*self }
    }

    /// What the model says after a token, unless it is random.
    pub fn next(&self, token: u32) -> u32 {
        (self.step)(token)
    }
}

/// A walk through all tokens.
fn walk(token: u32) -> u32 {
    (token * 5 + 7) % VOCABULARY
}

/// The token that is `steps` before another on the walk.
fn before(token: u32, steps: usize) -> u32 {
    let follows = |from: u32| (0..steps).fold(from, |token, _| walk(token)) == token;
    (0..VOCABULARY).find(|from| follows(*from)).expect("the walk meets every token")
}

/// A number of the embedding of a token: a constant, then signs by chance.
fn embedding(token: u32, column: u32) -> f32 {
    match column {
        0 => 1.0,
        _ => element("signs", u64::from(token * WIDTH + column), 7).signum(),
    }
}

/// Tensors by name and shape, with their numbers by row and column.
#[derive(Default)]
struct Tensors(Vec<(TensorSpec, Bytes)>);

impl Tensors {
    fn add(&mut self, name: &str, shape: &[u32], number: impl Fn(u32, u32) -> f32) {
        let (rows, columns) = match *shape {
            [columns] => (1, columns),
            [rows, columns] => (rows, columns),
            _ => panic!("a vector or a matrix"),
        };
        let numbers = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let bytes = numbers.flat_map(|(row, column)| number(row, column).to_le_bytes()).collect();
        let shape = shape.iter().map(|extent| u64::from(*extent)).collect();
        self.0.push((TensorSpec { name: name.into(), dtype: DType::F32, shape }, Bytes::Owned(bytes)));
    }

    fn by_chance(&mut self, name: &str, shape: &[u32], factor: f32) {
        let columns = *shape.last().expect("an extent");
        self.add(name, shape, |row, column| factor * element(name, u64::from(row * columns + column), 3));
    }

    fn ones(&mut self, name: &str, extent: u32) {
        self.add(name, &[extent], |_, _| 1.0);
    }

    /// The network of a layer; with a factor of 0 it gives nothing.
    fn network(&mut self, layer: u32, factor: f32) {
        self.ones(&format!("blk.{layer}.ffn_norm.weight"), WIDTH);
        for name in ["ffn_gate", "ffn_up"] {
            self.by_chance(&format!("blk.{layer}.{name}.weight"), &[WIDTH, WIDTH], 1.0);
        }
        self.by_chance(&format!("blk.{layer}.ffn_down.weight"), &[WIDTH, WIDTH], factor);
    }

    fn d2t(&mut self, tokens: &[i64]) {
        let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let spec = TensorSpec { name: "d2t".into(), dtype: DType::I64, shape: vec![tokens.len() as u64] };
        self.0.push((spec, Bytes::Owned(bytes)));
    }

    fn file(self, architecture: &str, keys: &[(&str, Value)]) -> Arc<File> {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture);
        let common = [
            ("embedding_length", WIDTH),
            ("feed_forward_length", WIDTH),
            ("context_length", 256),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", HEADS),
            ("attention.key_length", HEAD),
            ("attention.value_length", HEAD),
        ];
        for (key, number) in common {
            metadata.set(format!("{architecture}.{key}"), number);
        }
        metadata.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-6_f32);
        metadata.set(format!("{architecture}.rope.freq_base"), 500.0_f32);
        for (key, value) in keys {
            let own = !key.starts_with("tokenizer.");
            metadata.set(if own { format!("{architecture}.{key}") } else { (*key).into() }, value.clone());
        }
        Arc::new(File::from_parts(metadata, self.0).expect("the tensors are good"))
    }
}

/// A llama that says `step` of the last token, or by chance.
fn target(step: Option<fn(u32) -> u32>) -> Arc<File> {
    let mut tensors = Tensors::default();
    let factor = if step.is_some() { 0.0 } else { 4.0 };
    tensors.add("token_embd.weight", &[VOCABULARY, WIDTH], embedding);
    for layer in 0..LAYERS {
        tensors.ones(&format!("blk.{layer}.attn_norm.weight"), WIDTH);
        for name in ["attn_q", "attn_k", "attn_v"] {
            tensors.by_chance(&format!("blk.{layer}.{name}.weight"), &[WIDTH, WIDTH], 2.0);
        }
        tensors.by_chance(&format!("blk.{layer}.attn_output.weight"), &[WIDTH, WIDTH], factor);
        tensors.network(layer, factor);
    }
    tensors.ones("output_norm.weight", WIDTH);
    match step {
        Some(step) => {
            let said_after = |token| (0..VOCABULARY).find(|from| step(*from) == token).unwrap_or(token);
            tensors
                .add("output.weight", &[VOCABULARY, WIDTH], |row, column| embedding(said_after(row), column));
        }
        None => tensors.by_chance("output.weight", &[VOCABULARY, WIDTH], 4.0),
    }
    tensors.file("llama", &[("block_count", LAYERS.into())])
}

/// How an EAGLE-3 head comes to its guess.
enum Source {
    Chance,
    /// From the token that it reads beside the states.
    Token,
    /// From the states alone, which are those of the token before.
    State,
}

fn eagle3(source: &Source) -> Arc<File> {
    let mut tensors = Tensors::default();
    let identity = |row: u32, column: u32| f32::from(u8::from(row == column));
    let attends = |name: &'static str| {
        move |row: u32, column: u32| match name {
            // Queries and keys are the same everywhere, so that with the rotation a row sees itself.
            "attn_q" | "attn_k" => 9.0 * f32::from(u8::from(column == 0)),
            _ => f32::from(u8::from(row == column)),
        }
    };
    tensors.ones("blk.0.attn_norm.weight", WIDTH);
    let heard = if matches!(source, Source::Token) { 0.0 } else { 1.0 };
    tensors.add("blk.0.attn_norm_2.weight", &[WIDTH], |_, _| heard);
    for name in ["attn_q", "attn_k", "attn_v"] {
        let (full, shape) = (format!("blk.0.{name}.weight"), [HEADS * HEAD, 2 * WIDTH]);
        match source {
            Source::Token => tensors.add(&full, &shape, attends(name)),
            _ => tensors.by_chance(&full, &shape, 2.0),
        }
    }
    match source {
        Source::Token => tensors.add("blk.0.attn_output.weight", &[WIDTH, WIDTH], identity),
        Source::State => tensors.add("blk.0.attn_output.weight", &[WIDTH, WIDTH], |_, _| 0.0),
        Source::Chance => tensors.by_chance("blk.0.attn_output.weight", &[WIDTH, WIDTH], 2.0),
    }
    tensors.network(0, if matches!(source, Source::Chance) { 2.0 } else { 0.0 });
    match source {
        // The second of three layers.
        Source::State => {
            tensors.add("fc.weight", &[WIDTH, 3 * WIDTH], |row, column| identity(row + WIDTH, column));
        }
        _ => tensors.by_chance("fc.weight", &[WIDTH, 3 * WIDTH], 2.0),
    }
    tensors.ones("output_norm.weight", WIDTH);
    // Its own tokens are those of the model backwards, and the model's first four are not among them.
    let own = VOCABULARY - 4;
    let token = |row: u32| VOCABULARY - 1 - row;
    match source {
        Source::Chance => tensors.by_chance("output.weight", &[own, WIDTH], 4.0),
        source => {
            let steps = if matches!(source, Source::Token) { 1 } else { 2 };
            tensors.add("output.weight", &[own, WIDTH], |row, column| {
                embedding(before(token(row), steps), column)
            });
        }
    }
    tensors.d2t(&(0..own).map(|row| i64::from(token(row))).collect::<Vec<_>>());
    let keys = [
        ("block_count", 1_u32.into()),
        ("target_layers", Array::U32(vec![0, 1, 2]).into()),
        ("target_hidden_size", WIDTH.into()),
        ("norm_before_residual", matches!(source, Source::Token).into()),
    ];
    tensors.file("eagle3", &keys)
}

/// With `right`, a draft model that says what most of the text is.
fn dflash(right: bool) -> Arc<File> {
    let mut tensors = Tensors::default();
    let identity = |row: u32, column: u32| f32::from(u8::from(row == column));
    tensors.ones("enc.output_norm.weight", WIDTH);
    tensors.ones("blk.0.attn_norm.weight", WIDTH);
    for name in ["attn_q_norm", "attn_k_norm"] {
        tensors.ones(&format!("blk.0.{name}.weight"), HEAD);
    }
    if right {
        tensors.add("fc.weight", &[WIDTH, 2 * WIDTH], identity);
        for name in ["attn_q", "attn_k"] {
            tensors.add(&format!("blk.0.{name}.weight"), &[WIDTH, WIDTH], |_, _| 0.0);
        }
        tensors.add("blk.0.attn_v.weight", &[WIDTH, WIDTH], identity);
        tensors.add("blk.0.attn_output.weight", &[WIDTH, WIDTH], |row, column| 8.0 * identity(row, column));
    } else {
        tensors.by_chance("fc.weight", &[WIDTH, 2 * WIDTH], 2.0);
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            tensors.by_chance(&format!("blk.0.{name}.weight"), &[WIDTH, WIDTH], 2.0);
        }
    }
    tensors.network(0, if right { 0.0 } else { 2.0 });
    tensors.ones("output_norm.weight", WIDTH);
    if !right {
        tensors.by_chance("output.weight", &[VOCABULARY, WIDTH], 4.0);
    }
    let keys = [
        ("block_count", 1_u32.into()),
        ("target_layers", Array::U32(vec![1, 2]).into()),
        ("block_size", 8_u32.into()),
        ("tokenizer.ggml.mask_token_id", (VOCABULARY - 1).into()),
    ];
    tensors.file("dflash", &keys)
}

/// A model with a layer of its own that guesses ahead, by chance or right by construction, as the layer's source says.
fn ahead(source: &Source) -> Arc<File> {
    let mut tensors = Tensors::default();
    let chance = matches!(source, Source::Chance);
    let factor = if chance { 2.0 } else { 0.0 };
    tensors.add("token_embd.weight", &[VOCABULARY, WIDTH], embedding);
    tensors.ones("output_norm.weight", WIDTH);
    match chance {
        true => tensors.by_chance("output.weight", &[VOCABULARY, WIDTH], 4.0),
        false => tensors.add("output.weight", &[VOCABULARY, WIDTH], says(1)),
    }
    for layer in 0..=LAYERS {
        for name in ["attn_norm", "attn_q_norm", "attn_k_norm"] {
            let extent = if name == "attn_norm" { WIDTH } else { HEAD };
            tensors.ones(&format!("blk.{layer}.{name}.weight"), extent);
        }
        for name in ["attn_q", "attn_k", "attn_v"] {
            tensors.by_chance(&format!("blk.{layer}.{name}.weight"), &[WIDTH, WIDTH], 2.0);
        }
        tensors.by_chance(&format!("blk.{layer}.attn_output.weight"), &[WIDTH, WIDTH], factor);
        tensors.network(layer, factor);
    }
    for name in ["enorm", "hnorm"] {
        tensors.ones(&format!("blk.{LAYERS}.nextn.{name}.weight"), WIDTH);
    }
    let joins = format!("blk.{LAYERS}.nextn.eh_proj.weight");
    match source {
        Source::Chance => tensors.by_chance(&joins, &[WIDTH, 2 * WIDTH], 2.0),
        source => tensors.add(&joins, &[WIDTH, 2 * WIDTH], takes(source, WIDTH)),
    }
    if matches!(source, Source::State) {
        let head = format!("blk.{LAYERS}.nextn.shared_head_head.weight");
        tensors.add(&head, &[VOCABULARY, WIDTH], says(2));
    }
    let keys = [
        ("block_count", (LAYERS + 1).into()),
        ("nextn_predict_layers", 1_u32.into()),
        ("expert_feed_forward_length", WIDTH.into()),
    ];
    tensors.file("hy_v3", &keys)
}

/// Rows of an output matrix that say what is so many steps further on the walk than the token whose embedding they read.
fn says(steps: usize) -> impl Fn(u32, u32) -> f32 {
    move |row, column| match row < VOCABULARY {
        true => embedding(before(row, steps), column),
        false => 0.0,
    }
}

/// Of embedding and state side by side, each so wide, the one that a guess is made from.
fn takes(source: &Source, width: u32) -> impl Fn(u32, u32) -> f32 {
    let first = if matches!(source, Source::State) { width } else { 0 };
    move |row, column| f32::from(u8::from(column == first + row))
}

/// The zoo's hybrid with a layer that guesses ahead. With `right`, its branches give nothing, and model and layer say what follows
/// on the walk.
fn hybrid(right: bool) -> Arc<File> {
    let models = ahead_models();
    let model = models.iter().find(|model| model.architecture() == "qwen35").expect("the zoo has one");
    let file = model.open();
    let part = |info: &puna_gguf::TensorInfo| {
        let spec: TensorSpec = info.into();
        let columns = *info.shape.last().expect("an extent") as u32;
        let branch = ["attn_output.weight", "ssm_out.weight", "ffn_down.weight"];
        let number: Box<dyn Fn(u32, u32) -> f32> = match info.name.as_str() {
            _ if !right => return (spec, Bytes::Owned(file.bytes(info).to_vec())),
            "token_embd.weight" => Box::new(embedding),
            "output.weight" => Box::new(says(1)),
            name if name.ends_with("eh_proj.weight") => Box::new(takes(&Source::Token, columns / 2)),
            name if branch.iter().any(|branch| name.ends_with(branch)) => Box::new(|_, _| 0.0),
            name if name.ends_with("norm.weight") => Box::new(|_, _| 1.0),
            _ => return (spec, Bytes::Owned(file.bytes(info).to_vec())),
        };
        let places = 0..info.elements() as u32;
        let bytes = places.flat_map(|place| number(place / columns, place % columns).to_le_bytes());
        (spec, Bytes::Owned(bytes.collect()))
    };
    let parts = file.tensors.iter().map(part).collect();
    Arc::new(File::from_parts(file.metadata.clone(), parts).expect("the tensors are good"))
}

/// Pairs of a model and itself.
fn with_itself() -> Vec<Pair> {
    let pair = |name, target: Arc<File>, right: Option<usize>| {
        let step: fn(u32) -> u32 = if right.is_some() { walk } else { |token| token };
        Pair { name, head: target.clone(), target, right, step }
    };
    vec![
        pair("ahead by chance", ahead(&Source::Chance), None),
        pair("ahead from tokens", ahead(&Source::Token), Some(usize::MAX)),
        pair("ahead from states", ahead(&Source::State), Some(1)),
        pair("ahead by chance, hybrid", hybrid(false), None),
        pair("ahead from tokens, hybrid", hybrid(true), Some(usize::MAX)),
    ]
}

/// All pairs.
pub fn pairs() -> Vec<Pair> {
    let same: fn(u32) -> u32 = |token| token;
    let mut pairs = vec![
        Pair {
            name: "eagle3 by chance",
            target: target(None),
            head: eagle3(&Source::Chance),
            right: None,
            step: same,
        },
        Pair {
            name: "eagle3 from tokens",
            target: target(Some(walk)),
            head: eagle3(&Source::Token),
            right: Some(usize::MAX),
            step: walk,
        },
        Pair {
            name: "eagle3 from states",
            target: target(Some(walk)),
            head: eagle3(&Source::State),
            right: Some(1),
            step: walk,
        },
        Pair { name: "dflash by chance", target: target(None), head: dflash(false), right: None, step: same },
        Pair {
            name: "dflash from the text",
            target: target(Some(same)),
            head: dflash(true),
            right: Some(usize::MAX),
            step: same,
        },
    ];
    pairs.extend(with_itself());
    pairs
}
