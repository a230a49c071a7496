//! Tokens with a meaning of their own: which metadata key names them, and which texts give them away in files that
//! do not.

/// Roles that a token can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names are the field's terms
pub enum Role {
    /// Beginning of sequence.
    Bos,
    /// End of sequence.
    Eos,
    /// End of turn.
    Eot,
    /// End of message: the model waits for a tool's answer.
    Eom,
    Unknown,
    Separator,
    Padding,
    Classification,
    Mask,
    /// Infill: before the text that precedes the gap.
    FimPrefix,
    /// Infill: before the text that follows the gap.
    FimSuffix,
    /// Infill: where the model starts to fill the gap.
    FimMiddle,
    FimPadding,
    FimRepository,
    FimSeparator,
}

/// One role's key and texts.
pub(crate) struct RoleRow {
    pub(crate) role: Role,
    /// Metadata keys, the current spelling first.
    pub(crate) keys: &'static [&'static str],
    /// Texts that mean this role where no key does.
    pub(crate) texts: &'static [&'static str],
    /// Whether the token ends generation.
    pub(crate) ends_generation: bool,
}

const fn row(
    role: Role,
    keys: &'static [&'static str],
    texts: &'static [&'static str],
    ends_generation: bool,
) -> RoleRow {
    RoleRow { role, keys, texts, ends_generation }
}

/// All roles. The index of a row is the role's number.
pub(crate) const ROLES: &[RoleRow] = &[
    row(Role::Bos, &["tokenizer.ggml.bos_token_id"], &[], false),
    row(Role::Eos, &["tokenizer.ggml.eos_token_id"], &[], true),
    row(
        Role::Eot,
        &["tokenizer.ggml.eot_token_id"],
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
        true,
    ),
    row(Role::Eom, &["tokenizer.ggml.eom_token_id"], &["<|eom_id|>"], true),
    row(Role::Unknown, &["tokenizer.ggml.unknown_token_id"], &[], false),
    // The misspelling is the real key.
    row(Role::Separator, &["tokenizer.ggml.seperator_token_id"], &[], false),
    row(Role::Padding, &["tokenizer.ggml.padding_token_id"], &[], false),
    row(Role::Classification, &["tokenizer.ggml.cls_token_id"], &[], false),
    row(Role::Mask, &["tokenizer.ggml.mask_token_id"], &[], false),
    row(
        Role::FimPrefix,
        &["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        false,
    ),
    row(
        Role::FimSuffix,
        &["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        false,
    ),
    row(
        Role::FimMiddle,
        &["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        false,
    ),
    row(
        Role::FimPadding,
        &["tokenizer.ggml.fim_pad_token_id"],
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        true,
    ),
    row(
        Role::FimRepository,
        &["tokenizer.ggml.fim_rep_token_id"],
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        true,
    ),
    row(Role::FimSeparator, &["tokenizer.ggml.fim_sep_token_id"], &["<|file_sep|>"], true),
];

/// Texts of tokens that end generation whatever the keys say.
pub(crate) const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// A text that does not end generation although it looks so, in vocabularies that hold certain other texts.
pub(crate) struct Exception {
    /// All of these must be in the vocabulary.
    pub(crate) present: &'static [&'static str],
    /// This one then does not end generation.
    pub(crate) removed: &'static str,
    /// Whether that token becomes user-defined, so that it is shown. Otherwise it is what the file says that it is.
    pub(crate) shown: bool,
}

/// Exceptions in the order in which they apply.
pub(crate) const EXCEPTIONS: &[Exception] = &[
    // Harmony ends messages with <|end|> and the turn with <|return|> or <|call|>.
    Exception { present: &["<|return|>", "<|call|>", "<|end|>"], removed: "<|end|>", shown: true },
    Exception { present: &["<|calls|>", "<|flush|>", "<|end|>"], removed: "<|end|>", shown: true },
    // Here </s> is the tag of HTML, one of many: Gemma 4, and Gemma before it.
    Exception { present: &["<|tool_response>"], removed: "</s>", shown: false },
    Exception { present: &["<start_of_turn>", "<b>", "</b>", "<s>"], removed: "</s>", shown: false },
    Exception { present: &["<|plamo:eos|>"], removed: "</s>", shown: false },
];

/// Control tokens of the harmony format that parsers need to see.
pub(crate) const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
