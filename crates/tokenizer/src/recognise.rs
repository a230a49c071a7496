//! Which name of the pre-tokenizer table means the patterns that a `tokenizer.json` lists.

use crate::pre_tokenizer::Step;
use crate::pre_tokenizer_table::{PRE_TOKENIZERS, Row};

/// The pattern that byte-level pre-tokenizers of `tokenizer.json` use where they list none.
pub const BYTE_LEVEL_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// What punctuation is to pre-tokenizers of `tokenizer.json`, in runs.
pub const PUNCTUATION_PATTERN: &str = r"[\p{P}\$\+<=>\^~\|`]+";

/// The name for `tokenizer.ggml.pre` of the pre-tokenizer that applies these patterns one after another, if the table has
/// it. Of names with the same patterns, the one whose flags agree is taken: `ignore_merges`, whether words that are
/// tokens need no merges, and `add_bos`, whether texts begin with the token for that.
pub fn pre_tokenizer_name(patterns: &[&str], ignore_merges: bool, add_bos: bool) -> Option<&'static str> {
    let wanted: Vec<String> = patterns.iter().map(|pattern| normalised(pattern)).collect();
    let agreement = |row: &&Row| {
        let merges = usize::from(row.ignore_merges == ignore_merges);
        2 * merges + usize::from(row.add_bos == add_bos)
    };
    // Runs of digits are cut into single ones by vocabularies without longer tokens.
    let single = |patterns: &[String]| -> Vec<String> {
        patterns.iter().map(|pattern| pattern.replace(r"\p{N}+", r"\p{N}")).collect()
    };
    let without_numbers = |patterns: &[String]| -> Vec<String> {
        patterns.iter().filter(|pattern| *pattern != r"\p{N}+").cloned().collect()
    };
    type View<'v> = &'v dyn Fn(&[String]) -> Vec<String>;
    let views: [View<'_>; 3] = [&|patterns| patterns.to_vec(), &single, &without_numbers];
    views.iter().find_map(|view| {
        let rows =
            PRE_TOKENIZERS.iter().filter(|row| steps(row).is_some_and(|steps| view(&steps) == view(&wanted)));
        // The first of equals is the one that the others were made after.
        let best = rows.rev().max_by_key(agreement)?;
        best.names.first().copied()
    })
}

/// Whether `tokenizer.ggml.pre` may have this name.
pub fn is_pre_tokenizer(name: &str) -> bool {
    crate::pre_tokenizer_table::find(name).is_some()
}

/// The patterns of a row, if they are all of the kind that `tokenizer.json` has.
fn steps(row: &Row) -> Option<Vec<String>> {
    let pattern = |step: &Step| match step {
        Step::Matches(pattern) | Step::MatchesOrSpaces(pattern) => Some(normalised(pattern)),
        Step::DigitGroups { before_word_end: true } => Some(normalised(r"\d{1,3}(?=(?:\d{3})*\b)")),
        Step::DigitGroups { .. } | Step::MatchesOrSpacePowers(_) | Step::OnlyMatches(_) => None,
    };
    row.steps.iter().map(pattern).collect()
}

/// Ways to write the same thing, and the one that is compared.
const SAME: &[(&str, &str)] = &[
    ("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    ("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    ("(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    ("(?i)'s|'t|'re|'ve|'m|'ll|'d|", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"),
    ("|[.,!?…。，、।۔،])]+", "|.,!?…。，、।۔،)]+"),
    ("?+", "?"),
    ("++", "+"),
    ("*+", "*"),
    ("\n", r"\n"),
    ("\r", r"\r"),
];

/// Endings for white space that all steps with look-ahead share.
const ENDINGS: &[&str] = &[r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s", r"|\s+(?!\S)"];

fn normalised(pattern: &str) -> String {
    let mut text = characters(pattern);
    for (found, kept) in SAME {
        text = text.replace(found, kept);
    }
    let ending = ENDINGS.iter().find_map(|ending| text.strip_suffix(ending).map(str::len));
    if let Some(length) = ending {
        text.truncate(length);
    }
    text
}

/// Characters in place of `\u{…}`.
fn characters(pattern: &str) -> String {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once(r"\u{") {
        text.push_str(before);
        let found = after
            .split_once('}')
            .and_then(|(digits, rest)| Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, rest)));
        match found {
            Some((character, after)) => {
                text.push(character);
                rest = after;
            }
            None => {
                text.push_str(r"\u{");
                rest = after;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_real_files_are_recognised() {
        let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let deepseek = [
            r"\p{N}{1,3}",
            "[一-龥\u{3040}-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ];
        for (patterns, ignore_merges, add_bos, name) in [
            (&[llama3][..], true, true, "llama3"),
            (&[llama3], true, false, "glm4"),
            (&[llama3], false, false, "dbrx"),
            (&[qwen2], false, false, "qwen2"),
            (&[BYTE_LEVEL_PATTERN], false, false, "gpt-2"),
            (&[r"\p{N}", BYTE_LEVEL_PATTERN], false, false, "starcoder"),
            (&deepseek, false, false, "deepseek-v3"),
            (
                &[PUNCTUATION_PATTERN, BYTE_LEVEL_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]"],
                false,
                false,
                "falcon",
            ),
        ] {
            assert_eq!(pre_tokenizer_name(patterns, ignore_merges, add_bos), Some(name));
        }
        assert_eq!(pre_tokenizer_name(&[r"\w+"], false, false), None);
        assert_eq!(pre_tokenizer_name(&[], false, false), None);
        assert_eq!(pre_tokenizer_name(&[r"\u{zz", r"\u{110000}"], false, false), None);
    }
}
