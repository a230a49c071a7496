//! "Did you mean": the known word closest to an unknown one.

/// The word with the fewest edits from `given`, if they are few for its length.
pub fn closest<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody means a flag with a novel; this also bounds the work.
    if given.chars().count() > 64 {
        return None;
    }
    let limit = (given.trim_start_matches('-').chars().count() / 3).clamp(1, 3);
    let ranked = words.into_iter().map(|word| (edits(given, word), word));
    ranked.filter(|(edits, _)| *edits <= limit).min_by_key(|(edits, _)| *edits).map(|(_, word)| word)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    let mut previous = None;
    for (row, letter) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != *other);
            let mut best = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            if column > 0 && previous == Some(*other) && right[column - 1] == letter {
                best = best.min(before_last[column - 1] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
        previous = Some(letter);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_nearest_word() {
        let words = ["--temp", "--top-k", "--top-p", "-ngl", "--threads"];
        for (given, expected) in [
            ("--tmep", Some("--temp")),
            ("--thread", Some("--threads")),
            ("-nlg", Some("-ngl")),
            ("--topk", Some("--top-k")),
            ("--zebra", None),
        ] {
            assert_eq!(closest(given, words), expected, "{given}");
        }
    }
}
