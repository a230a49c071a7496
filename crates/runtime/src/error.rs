//! Errors of loading and running.

use puna_backend::BackendError;

use crate::size::size;

/// Why a model cannot be loaded, or cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The file is not readable as a model file.
    #[error(transparent)]
    Gguf(#[from] puna_gguf::Error),
    /// The file describes no model that can be built.
    #[error(transparent)]
    Model(#[from] puna_models::ModelError),
    /// A device failed or refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An adapter or a control vector does not fit the model.
    #[error(transparent)]
    Graph(#[from] puna_graph::GraphError),
    /// The file of an adapter or a control vector cannot be used.
    #[error("{path}: {reason}", path = path.display())]
    Addition {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The features of a work do not fit its tokens and the model.
    #[error("work {work} brings {found} numbers as features, its tokens need {expected}")]
    Features {
        /// Index of the work in its batch.
        work: usize,
        /// Numbers that it brings.
        found: usize,
        /// Numbers that its tokens need; 0 if the model takes none.
        expected: usize,
    },
    /// Factors of adapters that do not fit the model.
    #[error(
        "{found} factors were given, not all of them finite or not one for each of the {expected} adapters that can be switched"
    )]
    Adapters {
        /// Factors given.
        found: usize,
        /// Adapters that the model has and that can be switched.
        expected: usize,
    },
    /// The inputs of a layer cannot be handed out.
    #[error("the model does not hand out what layer {layer} reads, as a draft head needs it")]
    NoLayerInput {
        /// The layer, counted from 0.
        layer: u32,
    },
    /// The file is no draft head, or its tokens are not the other model's.
    #[error("no usable draft head: {reason}")]
    DraftHead {
        /// What is wrong with it.
        reason: String,
    },
    /// Loading was stopped by the caller.
    #[error("loading was cancelled")]
    Cancelled,
    /// A load option is out of range.
    #[error("option {option} is {value}, it must be from {least} to {most}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: u32,
        /// Smallest value allowed.
        least: u32,
        /// Largest value allowed.
        most: u32,
    },
    /// The placement names a back end or device that does not exist.
    #[error("there is no device {device} of back end {backend}; {backends} back ends are known")]
    NoDevice {
        /// Index of the back end.
        backend: usize,
        /// Index of the device.
        device: usize,
        /// How many back ends there are.
        backends: usize,
    },
    /// The model is too large for the memory that is free.
    #[error(
        "the model does not fit: on {device} it needs {} with a context of {context} (weights {}, caches {}, computing {}), \
         {} are free, {} are missing{}",
        size(.weights.saturating_add(*.caches).saturating_add(*.work)), size(*.weights), size(*.caches), size(*.work),
        size(*.free), size(*.missing),
        if *.on_host { "" } else { "; fewer layers there, or experts on the host, need less" }
    )]
    DoesNotFit {
        /// The device that lacks most.
        device: String,
        /// Bytes that are free there.
        free: u64,
        /// Bytes that its weights take.
        weights: u64,
        /// Bytes that its caches take.
        caches: u64,
        /// Bytes that the values of a step take.
        work: u64,
        /// Bytes that are missing.
        missing: u64,
        /// Tokens of context that this is for.
        context: u32,
        /// Whether it is the host.
        on_host: bool,
    },
    /// No back end can run an operation of the model.
    #[error("no back end can run {op} (node {node}, {name})")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// Index of the node.
        node: usize,
        /// Its name.
        name: &'static str,
    },
    /// The graph is not a language model's.
    #[error("the model's graph has no {what}")]
    NotALanguageModel {
        /// What it lacks.
        what: &'static str,
    },
    /// The bytes of a weight are not what its declaration says.
    #[error("weight {name} has {found} bytes, its shape and format need {expected}")]
    WeightBytes {
        /// Name of the tensor.
        name: String,
        /// Bytes there are.
        found: usize,
        /// Bytes needed.
        expected: u64,
    },
    /// The host has no memory to keep account of so many cells.
    #[error("there is no memory to keep account of a context of {cells} cells")]
    LedgerMemory {
        /// Cells asked for.
        cells: u32,
    },
    /// There are not enough cells for the batch. Nothing of it was run.
    #[error("the context is full: {needed} cells are needed, {free} of {context} are free")]
    ContextFull {
        /// Cells asked for.
        needed: u32,
        /// Cells there are for them.
        free: u32,
        /// Cells in all.
        context: u32,
    },
    /// A text has no tokens.
    #[error("text {index} is empty: at least one token is needed")]
    EmptyText {
        /// Its number.
        index: usize,
    },
    /// A text is longer than what the model has learned.
    #[error("a text of {tokens} tokens is too long: the model has learned {positions} positions")]
    BeyondPositions {
        /// Tokens of the text.
        tokens: usize,
        /// Positions that the model has learned.
        positions: u32,
    },
    /// A text must be in one step as a whole, and is too long.
    #[error(
        "a text of {tokens} tokens does not fit into a step of {most}: its tokens see one another, so it cannot be \
         cut; a larger micro-batch is needed (-ub, -b, -c)"
    )]
    TextTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens that a step holds.
        most: u32,
    },
    /// The model was loaded for another purpose.
    #[error("the model was loaded for {purpose}")]
    Purpose {
        /// What it was loaded for.
        purpose: &'static str,
    },
    /// The model has no encoder.
    #[error("a model of architecture '{architecture}' has no encoder")]
    NoEncoder {
        /// Its architecture.
        architecture: String,
    },
    /// The decoder was asked to go on before the encoder had read anything.
    #[error("sequence {sequence} has no input yet: the encoder must read it before the decoder goes on")]
    NotEncoded {
        /// The sequence.
        sequence: u32,
    },
    /// A token id is not in the vocabulary.
    #[error("token {token} is out of range, the vocabulary has {vocabulary} tokens")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Number of tokens.
        vocabulary: u32,
    },
    /// A sequence number is too large.
    #[error("sequence {sequence} is out of range, the model was loaded for {sequences}")]
    SequenceOutOfRange {
        /// The number.
        sequence: u32,
        /// How many sequences there are.
        sequences: u32,
    },
    /// A windowed cache gave up positions that would be seen again, or a recurrent layer has no state of that
    /// position.
    #[error(
        "sequence {sequence} cannot go on at position {position}: windowed or recurrent layers have forgotten \
         what it needs; possible are {nearest} and positions from {earliest}"
    )]
    PositionsLost {
        /// The sequence.
        sequence: u32,
        /// Where it was to go on.
        position: u32,
        /// The highest position below from which it can.
        nearest: u32,
        /// From where on it can from every position.
        earliest: u32,
    },
    /// Recurrent layers have mixed all positions into one state.
    #[error("sequence {sequence} cannot lose positions in its middle: the model has recurrent layers")]
    Recurrent {
        /// The sequence.
        sequence: u32,
    },
    /// Keys or values depend on positions in a way that cannot be changed afterwards.
    #[error("the context cannot be shifted: layer {layer} of the model ties what it keeps to its positions")]
    Unshiftable {
        /// First layer for which this holds.
        layer: u32,
    },
    /// A context shift names positions that the sequence does not have.
    #[error("cannot drop {discard} positions after the first {keep} of a sequence of {length}")]
    ShiftRange {
        /// Positions to keep at the start.
        keep: u32,
        /// Positions to drop after them.
        discard: u32,
        /// Length of the sequence.
        length: u32,
    },
    /// The tokens given to save with a sequence are not one for each of its positions.
    #[error("sequence {sequence} has {length} positions, {tokens} tokens were given to save with it")]
    TokenCount {
        /// The sequence.
        sequence: u32,
        /// Tokens given.
        tokens: usize,
        /// Positions of the sequence.
        length: u32,
    },
    /// A device returned another number of logits than were asked for.
    #[error("the model returned {found} logits instead of {expected}")]
    OutputCount {
        /// Logits returned.
        found: usize,
        /// Rows asked for times the vocabulary.
        expected: usize,
    },
    /// A saved sequence cannot be restored here. The sequence is as it was.
    #[error("the saved sequence cannot be restored: {0}")]
    Saved(#[from] SavedError),
}

/// What is wrong with a saved sequence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SavedError {
    /// It does not start as one.
    #[error("it is not a saved sequence")]
    Magic,
    /// Another version of this program wrote it.
    #[error("it has format version {found}, this program reads {expected}")]
    Version {
        /// Version in the data.
        found: u32,
        /// Version understood.
        expected: u32,
    },
    /// It is cut off, or longer than it should be.
    #[error("it has {found} bytes and says that it has {expected}")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes it claims.
        expected: u64,
    },
    /// It was damaged.
    #[error("its checksum is wrong, the data is damaged")]
    Checksum,
    /// It belongs to another model.
    #[error("it was saved from another model: {difference}")]
    OtherModel {
        /// What the data has instead of what the model has.
        difference: String,
    },
    /// The caches have other number formats.
    #[error("its caches are stored as {found}, the model was loaded with {expected}")]
    CacheFormat {
        /// Formats of keys and values in the data.
        found: String,
        /// Formats of keys and values of the model.
        expected: String,
    },
    /// A part of it contradicts another.
    #[error("its {part} are inconsistent")]
    Inconsistent {
        /// Which part.
        part: &'static str,
    },
}
