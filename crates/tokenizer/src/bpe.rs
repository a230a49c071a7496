//! Byte-pair encoding: text is cut into words, and within each the pair with the lowest merge rank merges first.

use std::borrow::Cow;
use std::collections::HashMap;

use puna_gguf::Metadata;

use crate::joints::Joints;
use crate::merge::Merger;
use crate::model::{Model, Source};
use crate::pre_tokenizer::PreTokenizer;
use crate::pre_tokenizer_table::{self as table, Alphabet, Row};
use crate::special_tokens::Role;
use crate::spm::BLOCK;
use crate::vocabulary::{Defaults, Vocabulary};
use crate::word_cache::WordCache;
use crate::{Error, Token, byte_level};

/// Symbol of a text that is neither a token nor part of a merge.
const ABSENT: u32 = u32::MAX;

/// Pairs of symbols, with their rank and the symbol they become.
type Ranks = foldhash::HashMap<(u32, u32), (u32, u32)>;

/// Where merge ranks come from.
#[derive(Debug)]
enum Merges {
    /// A list in the file. Symbols are tokens, or numbers from the vocabulary size on for texts that only occur in
    /// merges.
    Ranked(Ranks),
    /// Two symbols merge if their text is a token; its id is the rank.
    ByToken,
}

#[derive(Debug)]
struct BytePair {
    row: &'static Row,
    pre_tokenizer: PreTokenizer,
    merges: Merges,
    /// The symbol of each byte in the byte alphabet.
    byte_symbols: Vec<u32>,
    /// Where words without bytes as letters are cut further.
    joints: Option<Joints>,
}

/// The pre-tokenizer that a file names. `gemma4` and `whitespace` are names of models that imply one.
fn row(metadata: &Metadata) -> Result<&'static Row, Error> {
    let name = match metadata.optional_str("tokenizer.ggml.model")? {
        Some(model @ ("gemma4" | "whitespace")) => model,
        _ => metadata.optional_str("tokenizer.ggml.pre")?.unwrap_or(table::DEFAULT),
    };
    table::find(name).ok_or_else(|| Error::UnknownPreTokenizer { found: name.to_owned() })
}

pub(crate) fn defaults(metadata: &Metadata) -> Result<Defaults, Error> {
    let row = row(metadata)?;
    let gemma4 = metadata.optional_str("tokenizer.ggml.model")? == Some("gemma4");
    Ok(Defaults {
        roles: &[(Role::Bos, 11), (Role::Eos, 11)],
        add_bos: row.add_bos || gemma4,
        add_separator: row.add_separator,
        ..Defaults::default()
    })
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let Source { metadata, vocabulary, warnings } = source;
    let row = row(metadata)?;
    if row.names.contains(&table::DEFAULT) {
        warnings.push(
            "tokenizer.ggml.pre is missing: a guessed pre-tokenizer may degrade the answers".to_owned(),
        );
    }
    let pre_tokenizer = PreTokenizer::new(row.steps)
        .map_err(|error| Error::Damaged { key: "tokenizer.ggml.pre", message: error.to_string() })?;
    let mut unlisted = HashMap::new();
    let merges = match metadata.optional_string_array("tokenizer.ggml.merges")? {
        // Files made from rank tables may leave the merges out: the ids are the ranks.
        None if row.names.contains(&"kimi-k2") => Merges::ByToken,
        _ => Merges::Ranked(read_merges(
            vocabulary,
            metadata.string_array("tokenizer.ggml.merges")?,
            &mut unlisted,
        )?),
    };
    let symbol =
        |byte| vocabulary.find(byte_level::character(byte).encode_utf8(&mut [0; 4])).unwrap_or(ABSENT);
    let byte_symbols = (0..=255).map(symbol).collect();
    let joints = (row.alphabet != Alphabet::Bytes).then(|| {
        let tokens = vocabulary.iter().map(|(_, text, _)| text);
        Joints::new(tokens.chain(unlisted.keys().map(String::as_str)))
    });
    Ok(Box::new(BytePair { row, pre_tokenizer, merges, byte_symbols, joints }))
}

/// `unlisted` gets the texts that only occur in merges, with their symbols.
fn read_merges(
    vocabulary: &Vocabulary,
    merges: &[String],
    unlisted: &mut HashMap<String, u32>,
) -> Result<Ranks, Error> {
    let mut next = u32::try_from(vocabulary.len()).unwrap_or(ABSENT);
    let mut symbol = |text: &str| {
        vocabulary.find(text).unwrap_or_else(|| match unlisted.get(text) {
            Some(symbol) => *symbol,
            None => {
                let symbol = next;
                next = next.saturating_add(1).min(ABSENT - 1);
                unlisted.insert(text.to_owned(), symbol);
                symbol
            }
        })
    };
    let mut ranks = Ranks::with_capacity_and_hasher(merges.len(), Default::default());
    let mut joined = String::new();
    for (rank, merge) in (0u32..).zip(merges) {
        // The left text may itself begin with a space.
        let skipped = merge.chars().next().map_or(0, char::len_utf8);
        let space = merge.get(skipped..).and_then(|rest| rest.find(' ')).map(|space| space + skipped);
        let Some((left, right)) =
            space.and_then(|space| Some((merge.get(..space)?, merge.get(space + 1..)?)))
        else {
            return Err(Error::Merge { index: rank as usize, found: merge.clone() });
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let merged = symbol(&joined);
        ranks.entry((symbol(left), symbol(right))).or_insert((rank, merged));
    }
    Ok(ranks)
}

impl BytePair {
    /// The text of a word as tokens are written.
    fn spell(&self, word: &str) -> String {
        match self.row.alphabet {
            Alphabet::Bytes => word.bytes().map(byte_level::character).collect(),
            Alphabet::Characters | Alphabet::CharactersAndBlocks => word.to_owned(),
        }
    }

    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        merger: &mut Merger<u32>,
        tokens: &mut Vec<Token>,
    ) {
        if self.row.ignore_merges
            && word.len() <= vocabulary.longest_text()
            && let Some(token) = vocabulary.find(&self.spell(word))
        {
            tokens.push(token);
            return;
        }
        merger.clear();
        let mut bytes = Cow::Borrowed(word.as_bytes());
        match self.row.alphabet {
            Alphabet::Bytes => {
                let symbol = |byte: u8| self.byte_symbols.get(usize::from(byte)).copied().unwrap_or(ABSENT);
                if bytes.iter().any(|byte| symbol(*byte) == ABSENT) {
                    // As in the models' own tokenizers, a byte that no token stands for is left out, and its neighbours
                    // merge.
                    bytes.to_mut().retain(|byte| symbol(*byte) != ABSENT);
                }
                bytes.iter().for_each(|byte| merger.push(1, symbol(*byte)));
            }
            Alphabet::Characters | Alphabet::CharactersAndBlocks => {
                for character in word.chars() {
                    let symbol = vocabulary.find(character.encode_utf8(&mut [0; 4])).unwrap_or(ABSENT);
                    merger.push(character.len_utf8(), symbol);
                }
            }
        }
        match &self.merges {
            Merges::Ranked(ranks) => merger.merge(|left, right, _| ranks.get(&(left, right)).copied()),
            Merges::ByToken => merger.merge(|_, _, range| {
                // A byte is at most two bytes of token text.
                let text = bytes.get(range).filter(|text| text.len() <= vocabulary.longest_text())?;
                let text: String = text.iter().copied().map(byte_level::character).collect();
                vocabulary.find(&text).map(|token| (token, token))
            }),
        }
        for (symbol, range) in merger.symbols() {
            if (symbol as usize) < vocabulary.len() {
                tokens.push(symbol);
                continue;
            }
            let bytes = bytes.get(range).unwrap_or_default();
            tokens.extend(bytes.iter().filter_map(|byte| match self.row.alphabet {
                Alphabet::Bytes => self.byte_symbols.get(usize::from(*byte)).copied(),
                Alphabet::Characters | Alphabet::CharactersAndBlocks => {
                    vocabulary.byte_token(*byte).or_else(|| vocabulary.role(Role::Unknown))
                }
            }));
        }
    }
}

impl Model for BytePair {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, _after_special: bool, tokens: &mut Vec<Token>) {
        let mut merger = Merger::new();
        let blocks = (self.row.alphabet == Alphabet::CharactersAndBlocks)
            .then(|| text.replace(' ', BLOCK.encode_utf8(&mut [0; 4])));
        let text = blocks.as_deref().unwrap_or(text);
        let mut words = WordCache::new(text.len());
        let mut encode = |word| {
            words.encode(word, tokens, |tokens| {
                self.encode_word(vocabulary, word, &mut merger, tokens);
                true
            });
        };
        self.pre_tokenizer.split(text, |word| match &self.joints {
            Some(joints) => joints.split(word, &mut encode),
            None => encode(word),
        });
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        match self.row.alphabet {
            Alphabet::CharactersAndBlocks => text.replace(BLOCK, " ").into_bytes(),
            Alphabet::Characters => text.as_bytes().to_vec(),
            Alphabet::Bytes => {
                let mut bytes = Vec::with_capacity(text.len());
                for character in text.chars() {
                    match byte_level::byte(character) {
                        Some(byte) => bytes.push(byte),
                        None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
                bytes
            }
        }
    }
}
