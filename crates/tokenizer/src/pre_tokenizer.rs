//! Cuts text into the words within which byte-pair merges happen.
//!
//! The published patterns need look-ahead, which recursive engines pay for with stack and quadratic time. Here every
//! pattern runs on a linear-time engine; the few look-aheads are known constructs with an equal meaning in code.

use std::ops::Range;
use std::sync::Arc;

use regex_automata::hybrid::BuildError;
use regex_automata::hybrid::regex::{Cache, Regex};
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, Match};

/// One step of a pre-tokenizer. Steps apply one after another, each to the pieces of the last; text between matches
/// is a piece too.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Matches of a pattern without look-ahead.
    Matches(&'static str),
    /// Matches of a pattern that continues `|\s+(?!\S)|\s+`: a run of whitespace leaves its last character to the
    /// word that follows, if one does.
    MatchesOrSpaces(&'static str),
    /// Like `MatchesOrSpaces`, with whitespace in pieces of 512, 256, … 4, 2 or 1.
    MatchesOrSpacePowers(&'static str),
    /// Runs of digits in threes counted from the right, the first piece being shorter.
    DigitGroups {
        /// Only where no word character follows the run.
        before_word_end: bool,
    },
    /// Matches of a pattern; text between them is dropped.
    OnlyMatches(&'static str),
}

/// A compiled list of steps.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    steps: Vec<Splitter>,
}

const SPACES: &str = r"\s+";
const DIGITS: &str = r"\d+";

impl PreTokenizer {
    pub(crate) fn new(steps: &[Step]) -> Result<PreTokenizer, Box<BuildError>> {
        Ok(PreTokenizer { steps: steps.iter().map(|step| Splitter::new(*step)).collect::<Result<_, _>>()? })
    }

    /// Visits the words of a text, in order, without empty ones.
    pub(crate) fn split<'a>(&self, text: &'a str, mut visit: impl FnMut(&'a str)) {
        let mut pieces: Vec<&str> = [text].into_iter().filter(|text| !text.is_empty()).collect();
        let Some((last, first)) = self.steps.split_last() else { return pieces.into_iter().for_each(visit) };
        for step in first {
            let mut next = Vec::with_capacity(pieces.len() * 2);
            let mut cache = step.caches.get();
            pieces.into_iter().for_each(|piece| step.split(&mut cache, piece, &mut |part| next.push(part)));
            pieces = next;
        }
        let mut cache = last.caches.get();
        pieces.into_iter().for_each(|piece| last.split(&mut cache, piece, &mut visit));
    }
}

type MakeCache = Box<dyn Fn() -> Cache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>;

/// A compiled step.
#[derive(Debug)]
struct Splitter {
    step: Step,
    regex: Arc<Regex>,
    /// The parts of its automaton that were needed so far, for each thread that runs it.
    caches: Pool<Cache, MakeCache>,
}

impl Splitter {
    fn new(step: Step) -> Result<Splitter, Box<BuildError>> {
        let regex = match step {
            Step::Matches(pattern) | Step::OnlyMatches(pattern) => Regex::new(pattern),
            Step::MatchesOrSpaces(pattern) | Step::MatchesOrSpacePowers(pattern) => {
                Regex::new_many(&[pattern, SPACES])
            }
            Step::DigitGroups { .. } => Regex::new(DIGITS),
        };
        let regex = Arc::new(regex?);
        let made = regex.clone();
        Ok(Splitter { step, regex, caches: Pool::new(Box::new(move || made.create_cache())) })
    }

    /// The first match from a place on.
    fn find(&self, cache: &mut Cache, text: &str, from: usize) -> Option<Match> {
        let input = Input::new(text).range(from..);
        // Mostly words follow each other without a gap, and for a match at a known place its end is enough. There are
        // no errors: nothing of the configuration makes an automaton give up.
        let here = input.clone().anchored(Anchored::Yes);
        if let Ok(Some(end)) = self.regex.forward().try_search_fwd(cache.forward_mut(), &here) {
            return Some(Match::new(end.pattern(), from..end.offset()));
        }
        self.regex.try_search(cache, &input).ok().flatten()
    }

    fn split<'a>(&self, cache: &mut Cache, text: &'a str, visit: &mut impl FnMut(&'a str)) {
        let keep_gaps = !matches!(self.step, Step::OnlyMatches(_));
        let mut push = |range: Range<usize>| {
            if let Some(piece) = text.get(range).filter(|piece| !piece.is_empty()) {
                visit(piece);
            }
        };
        let mut rest = 0;
        while rest < text.len()
            && let Some(found) = self.find(cache, text, rest)
        {
            if keep_gaps {
                push(rest..found.start());
            }
            let after = text.get(found.end()..).unwrap_or("");
            match self.step {
                Step::DigitGroups { before_word_end } => {
                    if before_word_end && after.chars().next().is_some_and(is_word_character) {
                        push(found.range());
                    } else {
                        groups_of_three(text.get(found.range()).unwrap_or(""))
                            .for_each(|group| push(found.start() + group.start..found.start() + group.end));
                    }
                    rest = found.end();
                }
                Step::MatchesOrSpaces(_) | Step::MatchesOrSpacePowers(_)
                    if found.pattern().as_usize() == 1 =>
                {
                    let spaces = text.get(found.range()).unwrap_or("");
                    let last = spaces.char_indices().next_back().map_or(0, |(start, _)| start);
                    // The pattern took the whole run, so what follows is no whitespace.
                    let end = if after.is_empty() || last == 0 { spaces.len() } else { last };
                    let own = spaces.get(..end).unwrap_or("");
                    match self.step {
                        Step::MatchesOrSpacePowers(_) => powers_of_two(own)
                            .for_each(|part| push(found.start() + part.start..found.start() + part.end)),
                        _ => push(found.start()..found.start() + end),
                    }
                    rest = found.start() + end;
                }
                _ => {
                    push(found.range());
                    rest = found.end();
                }
            }
            if found.is_empty() {
                break; // no pattern of the table matches nothing; if one did, the rest would be one piece
            }
        }
        if keep_gaps {
            push(rest..text.len());
        }
    }
}

/// What regular expressions take for part of a word at `\b`.
fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Byte ranges of groups of three characters, counted from the right.
fn groups_of_three(digits: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let count = digits.chars().count();
    let starts = digits.char_indices().enumerate();
    let starts = starts.filter(move |(position, _)| *position == 0 || (count - position).is_multiple_of(3));
    let starts: Vec<usize> = starts.map(|(_, (start, _))| start).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([digits.len()]).collect();
    starts.into_iter().zip(ends).map(|(start, end)| start..end)
}

/// Byte ranges of pieces with 512 characters, then of 256 and so on.
fn powers_of_two(spaces: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut left = spaces.chars().count();
    let mut start = 0;
    std::iter::from_fn(move || {
        let size = if left >= 512 { 512 } else { 1 << left.checked_ilog2()? };
        let piece = spaces.get(start..)?;
        let length = piece.char_indices().nth(size).map_or(piece.len(), |(end, _)| end);
        left -= size;
        start += length;
        Some(start - length..start)
    })
}

#[cfg(test)]
mod tests {
    use super::{PreTokenizer, Step};
    use crate::pre_tokenizer_table::{PRE_TOKENIZERS, find};

    fn split<'a>(steps: &[Step], text: &'a str) -> Vec<&'a str> {
        let mut words = Vec::new();
        PreTokenizer::new(steps).unwrap().split(text, |word| words.push(word));
        words
    }

    #[test]
    fn every_pattern_of_the_table_compiles() {
        for row in PRE_TOKENIZERS {
            assert!(PreTokenizer::new(row.steps).is_ok(), "{:?}", row.names);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn whitespace_leaves_its_last_character_to_the_next_word() {
        let steps = find("llama-bpe").unwrap().steps;
        assert_eq!(split(steps, "a   b"), ["a", "  ", " b"]);
        assert_eq!(split(steps, "a  \n\n  b \n"), ["a", "  \n\n", " ", " b", " \n"]);
        assert_eq!(split(steps, "x   "), ["x", "   "]);
        assert_eq!(split(steps, "I'LL\tgo 12345!!\n"), ["I", "'LL", "\tgo", " ", "123", "45", "!!\n"]);
        assert_eq!(split(find("gpt-2").unwrap().steps, "a\nb\u{3000} c"), ["a", "\n", "b", "\u{3000}", " c"]);
    }

    #[test]
    fn digits_group_from_the_right() {
        let steps = [Step::DigitGroups { before_word_end: true }];
        assert_eq!(split(&steps, "12345 6 1234x"), ["12", "345", " ", "6", " ", "1234", "x"]);
        let steps = [Step::DigitGroups { before_word_end: false }];
        assert_eq!(split(&steps, "1234x123456"), ["1", "234", "x", "123", "456"]);
    }

    #[test]
    fn whitespace_in_powers_of_two() {
        let text = format!("{}x", " ".repeat(520));
        let lengths: Vec<_> =
            split(find("jais-2").unwrap().steps, &text).iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [512, 4, 2, 1, 2]);
    }

    #[test]
    fn long_runs_of_one_class_are_fast_on_a_small_stack() {
        let texts: Vec<String> =
            [("Z", 131_072), ("a", 30_000), (".", 30_000), (" ", 30_000), ("漢", 30_000)]
                .iter()
                .chain(&[
                    ("\n", 30_000),
                    ("1", 30_000),
                    ("A", 43_000),
                    ("é", 30_000),
                    ("'", 30_000),
                    ("aB", 30_000),
                ])
                .map(|(text, count)| text.repeat(*count))
                .collect();
        let work = move || {
            for row in PRE_TOKENIZERS {
                let splitter = PreTokenizer::new(row.steps).unwrap();
                for text in &texts {
                    let start = std::time::Instant::now();
                    let mut pieces = Vec::new();
                    splitter.split(text, |piece| pieces.push(piece));
                    let elapsed = start.elapsed();
                    assert_eq!(pieces.concat().len() % text.len(), 0, "{:?}", row.names);
                    assert!(elapsed.as_millis() < 100, "{:?} {:?}: {elapsed:?}", row.names, &text[..3]);
                }
            }
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
    }
}
