//! The tokens of a model: texts, kinds, scores and roles.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use puna_gguf::Metadata;

use crate::special_tokens::{END_OF_GENERATION, EXCEPTIONS, ROLES, Role, SHOWN};
use crate::{Error, Token};

/// More tokens than any model has, few enough for every id to fit in 31 bits.
const MAX_TOKENS: usize = 1 << 28;

/// What kind of token it is. The numbers are those of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Part of ordinary text.
    Normal,
    /// Stands for text that the vocabulary does not cover.
    Unknown,
    /// Has a meaning and no text: not found in user text and not shown, unless asked for.
    Control,
    /// Added text that is always one token.
    UserDefined,
    /// A reserved place.
    Unused,
    /// One byte of text.
    Byte,
}

impl Kind {
    fn from_number(number: i32) -> Kind {
        match number {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }
}

/// Whether and how whitespace beside a token belongs to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Strip {
    pub(crate) left: bool,
    pub(crate) right: bool,
}

/// What a tokenizer model assumes where the file says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    pub(crate) roles: &'static [(Role, Token)],
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) add_separator: bool,
    pub(crate) add_space_prefix: bool,
    /// The classification token is what begins a sequence where no other does.
    pub(crate) begins_with_classification: bool,
}

/// The vocabulary of a model. Token ids are positions in it, from 0.
#[derive(Debug)]
pub struct Vocabulary {
    texts: Vec<Arc<str>>,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    /// Looked into for each piece of a text, so with a quick hash.
    index: foldhash::HashMap<Arc<str>, Token>,
    roles: Vec<Option<Token>>,
    end_of_generation: BTreeSet<Token>,
    suppressed: Vec<Token>,
    warnings: Vec<String>,
    strips: HashMap<Token, Strip>,
    longest_text: usize,
    /// The token of each byte.
    bytes: Vec<Option<Token>>,
    add_bos: bool,
    add_eos: bool,
    add_separator: bool,
    add_space_prefix: bool,
}

impl Vocabulary {
    pub(crate) fn from_metadata(metadata: &Metadata, defaults: Defaults) -> Result<Vocabulary, Error> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const KINDS: &str = "tokenizer.ggml.token_type";
        const SCORES: &str = "tokenizer.ggml.scores";
        let tokens = metadata.string_array(TOKENS)?;
        let count = tokens.len();
        if count == 0 || count > MAX_TOKENS {
            return Err(Error::VocabularySize { found: count, limit: MAX_TOKENS });
        }
        let same_length = |key, found| match found == count {
            true => Ok(()),
            false => Err(Error::ArrayLength { key, found, expected: count }),
        };
        let kinds = match metadata.optional_i32_array(KINDS)? {
            None => vec![Kind::Normal; count],
            Some(numbers) => numbers.into_iter().map(Kind::from_number).collect(),
        };
        same_length(KINDS, kinds.len())?;
        let scores = metadata.optional_f32_array(SCORES)?.unwrap_or_else(|| vec![0.0; count]);
        same_length(SCORES, scores.len())?;

        let mut texts: Vec<Arc<str>> = Vec::with_capacity(count);
        let mut index = foldhash::HashMap::with_capacity_and_hasher(count, Default::default());
        for (token, text) in (0..).zip(tokens) {
            let text: Arc<str> = match text.is_empty() {
                true => format!("[EMPTY_{token}]").into(),
                false => text.as_str().into(),
            };
            // Of equal texts, the first token is the one that encoding finds.
            index.entry(Arc::clone(&text)).or_insert(token);
            texts.push(text);
        }
        let longest_text = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let mut vocabulary = Vocabulary {
            texts,
            kinds,
            scores,
            index,
            roles: vec![None; ROLES.len()],
            end_of_generation: BTreeSet::new(),
            suppressed: Vec::new(),
            warnings: Vec::new(),
            strips: HashMap::new(),
            longest_text,
            bytes: Vec::new(),
            add_bos: metadata.bool_or("tokenizer.ggml.add_bos_token", defaults.add_bos)?,
            add_eos: metadata.bool_or("tokenizer.ggml.add_eos_token", defaults.add_eos)?,
            add_separator: metadata.bool_or("tokenizer.ggml.add_sep_token", defaults.add_separator)?,
            add_space_prefix: metadata
                .bool_or("tokenizer.ggml.add_space_prefix", defaults.add_space_prefix)?,
        };
        vocabulary.bytes = (0..=u8::MAX).map(|byte| vocabulary.find_byte(byte)).collect();
        vocabulary.assign_roles(metadata, defaults)?;
        vocabulary.find_end_of_generation();
        vocabulary.set_strips(metadata)?;
        let suppressed = metadata.optional_i32_array("tokenizer.ggml.suppress_tokens")?.unwrap_or_default();
        let (known, unknown): (Vec<i32>, Vec<i32>) =
            suppressed.into_iter().partition(|token| vocabulary.checked(i64::from(*token)).is_some());
        if let Some(first) = unknown.first() {
            vocabulary.warnings.push(format!(
                "tokenizer.ggml.suppress_tokens has {} ids that are no tokens, the first is {first}",
                unknown.len()
            ));
        }
        vocabulary.suppressed =
            known.into_iter().filter_map(|token| vocabulary.checked(i64::from(token))).collect();
        Ok(vocabulary)
    }

    fn checked(&self, token: i64) -> Option<Token> {
        Token::try_from(token).ok().filter(|token| (*token as usize) < self.len())
    }

    fn set_kind(&mut self, token: Token, kind: Kind) {
        if let Some(place) = self.kinds.get_mut(token as usize) {
            *place = kind;
        }
    }

    fn assign_roles(&mut self, metadata: &Metadata, defaults: Defaults) -> Result<(), Error> {
        for (number, row) in ROLES.iter().enumerate() {
            let mut found =
                defaults.roles.iter().find(|(role, _)| *role == row.role).map(|(_, token)| *token);
            for key in row.keys.iter().rev().filter(|key| metadata.contains(key)) {
                let named = metadata.optional_u32(key).or_else(|error| match error {
                    puna_gguf::Error::KeyRange { .. } => Ok(None),
                    error => Err(error),
                })?;
                match named {
                    // Files mark absent tokens with -1 or the largest number.
                    None | Some(u32::MAX) => found = None,
                    Some(token) if self.checked(i64::from(token)).is_some() => found = Some(token),
                    Some(token) => {
                        let count = self.len();
                        let used = found.filter(|token| self.checked(i64::from(*token)).is_some());
                        let instead =
                            used.map_or("it is not used".to_owned(), |used| format!("using {used} instead"));
                        self.warnings
                            .push(format!("{key} is {token}, but there are {count} tokens: {instead}"));
                    }
                }
            }
            let mut found = found.and_then(|token| self.checked(i64::from(token)));
            if found.is_none() {
                found = row.texts.iter().find_map(|text| self.find(text));
                if let Some(token) = found {
                    // Files with mistaken kinds exist; such a text is never ordinary.
                    self.set_kind(token, Kind::Control);
                }
            }
            if let Some(place) = self.roles.get_mut(number) {
                *place = found;
            }
        }
        if defaults.begins_with_classification && self.bos().is_none() {
            let classification = self.role(Role::Classification);
            let bos = ROLES.iter().position(|row| row.role == Role::Bos);
            if let Some(place) = bos.and_then(|number| self.roles.get_mut(number)) {
                *place = classification;
            }
        }
        Ok(())
    }

    fn find_end_of_generation(&mut self) {
        let in_file = self.kinds.clone();
        for row in ROLES.iter().filter(|row| row.ends_generation) {
            self.end_of_generation.extend(self.role(row.role));
        }
        for text in END_OF_GENERATION {
            if let Some(token) = self.find(text) {
                self.end_of_generation.insert(token);
                self.set_kind(token, Kind::Control);
            }
        }
        for text in SHOWN {
            if let Some(token) = self.find(text) {
                self.set_kind(token, Kind::UserDefined);
            }
        }
        for exception in EXCEPTIONS {
            let applies = exception.present.iter().all(|text| self.find(text).is_some());
            if let Some(token) = self.find(exception.removed).filter(|_| applies) {
                self.end_of_generation.remove(&token);
                let own = in_file.get(token as usize).copied().filter(|_| !exception.shown);
                self.set_kind(token, own.unwrap_or(Kind::UserDefined));
            }
        }
    }

    /// Some models' added tokens swallow whitespace beside them. Files do not say so: it is known by name.
    fn set_strips(&mut self, metadata: &Metadata) -> Result<(), Error> {
        let name = metadata.optional_str("general.name")?.unwrap_or_default().to_lowercase();
        let architecture = metadata.optional_str("general.architecture")?.unwrap_or_default();
        let pre_tokenizer = metadata.optional_str("tokenizer.ggml.pre")?.unwrap_or_default();
        let masked = ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&pre_tokenizer)
            || ["nomic-bert-moe", "jina-bert-v3"].contains(&architecture);
        if masked && let Some(token) = self.find("<mask>") {
            self.strips.insert(token, Strip { left: true, right: false });
        }
        if name.contains("modern-bert")
            && let Some(token) = self.find("[MASK]")
        {
            self.strips.insert(token, Strip { left: true, right: false });
        }
        if name.contains("phi-3") || name.contains("phi3") {
            let plain: Vec<_> =
                ["<unk>", "<s>", "<|endoftext|>"].iter().filter_map(|text| self.find(text)).collect();
            let special = (0..).zip(&self.kinds).filter(|(token, kind)| {
                matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown) && !plain.contains(token)
            });
            let strip = Strip { left: false, right: true };
            self.strips = special.map(|(token, _)| (token, strip)).collect();
        }
        Ok(())
    }

    /// What is odd about the keys, one sentence each.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn strip(&self, token: Token) -> Strip {
        self.strips.get(&token).copied().unwrap_or_default()
    }

    /// Bytes of the longest token text.
    pub(crate) fn longest_text(&self) -> usize {
        self.longest_text
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are no tokens; never true.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The text of a token as the file has it (with `▁`, `Ġ` and the like), or `None` beyond the vocabulary.
    pub fn text(&self, token: Token) -> Option<&str> {
        self.texts.get(token as usize).map(|text| &**text)
    }

    /// The kind of a token, or `None` beyond the vocabulary.
    pub fn kind(&self, token: Token) -> Option<Kind> {
        self.kinds.get(token as usize).copied()
    }

    /// The score of a token (a log-probability for unigram models, minus the rank for SentencePiece), or `None`
    /// beyond the vocabulary.
    pub fn score(&self, token: Token) -> Option<f32> {
        self.scores.get(token as usize).copied()
    }

    /// The first token with exactly this text.
    pub fn find(&self, text: &str) -> Option<Token> {
        self.index.get(text).copied()
    }

    /// All tokens in order: id, text, kind.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Token, &str, Kind)> + '_ {
        let pairs = self.texts.iter().zip(&self.kinds).enumerate();
        pairs.map(|(token, (text, kind))| (token as Token, &**text, *kind))
    }

    /// The token of a role, if the model has one.
    pub fn role(&self, role: Role) -> Option<Token> {
        let position = ROLES.iter().position(|row| row.role == role)?;
        self.roles.get(position).copied().flatten()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<Token> {
        self.role(Role::Bos)
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<Token> {
        self.role(Role::Eos)
    }

    /// Whether encoding with `add_special` puts the beginning-of-sequence token in front.
    pub fn add_bos(&self) -> bool {
        self.add_bos && self.bos().is_some()
    }

    /// Whether encoding with `add_special` puts the end-of-sequence token behind.
    pub fn add_eos(&self) -> bool {
        self.add_eos && self.eos().is_some()
    }

    /// Whether encoding with `add_special` puts the separator token behind.
    pub fn add_separator(&self) -> bool {
        self.add_separator && self.role(Role::Separator).is_some()
    }

    /// Whether a space goes before text at the start and after special tokens.
    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Whether a token ends generation.
    pub fn is_end_of_generation(&self, token: Token) -> bool {
        self.end_of_generation.contains(&token)
    }

    /// All tokens that end generation, in ascending order.
    pub fn end_of_generation_tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.end_of_generation.iter().copied()
    }

    /// Tokens that must never be sampled.
    pub fn suppress_tokens(&self) -> &[Token] {
        &self.suppressed
    }

    /// The token of one byte: `<0x41>`, or a token whose text is that character.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<Token> {
        self.bytes.get(usize::from(byte)).copied().flatten()
    }

    fn find_byte(&self, byte: u8) -> Option<Token> {
        self.find(&format!("<0x{byte:02X}>")).or_else(|| self.find(char::from(byte).encode_utf8(&mut [0; 4])))
    }
}

/// The byte of a token text such as `<0x41>`.
pub(crate) fn parse_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}
