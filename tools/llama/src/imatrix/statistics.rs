//! `--show-statistics`: what a file says about the activations of each tensor.

use super::file::{Entry, Sums};
use crate::console;
use std::collections::HashMap;
use std::fmt::Write;

/// Numbers about one tensor.
struct Row<'a> {
    layer: Option<u32>,
    kind: &'a str,
    means: Vec<f32>,
    /// Of all means.
    sum: f64,
}

/// Layer and kind in a name such as `blk.3.attn_q.weight`.
fn parts(name: &str) -> (Option<u32>, &str) {
    let short = name.strip_suffix(".weight").unwrap_or(name);
    let layer = short.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match layer.and_then(|(number, kind)| Some((number.parse().ok()?, kind))) {
        Some((layer, kind)) => (Some(layer), kind),
        None => (None, short),
    }
}

/// Two vectors' cosine; none of different lengths or of nothing.
fn cosine(one: &[f32], other: &[f32]) -> Option<f64> {
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let norms = (product(one, one) * product(other, other)).sqrt();
    (one.len() == other.len() && norms > 0.0).then(|| product(one, other) / norms)
}

/// The table, one line for each tensor, those with the largest activations first.
pub fn table<'a>(sums: &'a Sums) -> String {
    let row = |(name, entry): (&'a String, &Entry)| {
        let (layer, kind) = parts(name);
        let means = entry.means();
        Row { layer, kind, sum: total(&means), means }
    };
    let mut rows: Vec<Row<'_>> = sums.entries.iter().map(row).collect();
    rows.sort_by(|a, b| b.sum.total_cmp(&a.sum));
    let places: HashMap<(&str, Option<u32>), &Row<'_>> =
        rows.iter().map(|row| ((row.kind, row.layer), row)).collect();
    let mut text = format!(
        "{:>6} {:24} {:>12} {:>10} {:>12} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9} {:>8} {:>8}\n",
        "Layer",
        "Tensor",
        "Σ(Act²)",
        "Min",
        "Max",
        "μ",
        "σ",
        "% Active",
        "N",
        "Entropy",
        "E (norm)",
        "ZD",
        "CosSim"
    );
    for row in &rows {
        let count = row.means.len().max(1) as f64;
        let sum = row.sum;
        let mean = sum / count;
        let variance = row.means.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt();
        let active = row.means.iter().filter(|x| **x > 1e-5).count() as f64 / count;
        let entropy: f64 = row
            .means
            .iter()
            .map(|x| f64::from(*x) / sum.max(f64::MIN_POSITIVE))
            .filter(|share| *share > 0.0)
            .map(|share| -share * share.log2())
            .sum();
        let most = if count > 1.0 { entropy / count.log2() } else { 0.0 };
        // Columns more than a deviation above the mean.
        let far = row.means.iter().filter(|x| f64::from(**x) - mean > deviation).count() as f64 / count;
        let layer_before = row.layer.and_then(|layer| layer.checked_sub(1));
        let before = layer_before.and_then(|layer| places.get(&(row.kind, Some(layer))));
        let likeness = before.and_then(|before| cosine(&row.means, &before.means));
        let layer = row.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string());
        let least = row.means.iter().copied().fold(f32::INFINITY, f32::min);
        let highest = row.means.iter().copied().fold(0.0, f32::max);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{layer:>6} {:24} {sum:>12.2} {least:>10.4} {highest:>12.4} {mean:>10.4} {deviation:>10.4} {:>8.2}% {:>7} \
             {entropy:>9.4} {:>8.2}% {:>7.2}% {:>8}",
            console::printable(row.kind, usize::MAX),
            active * 100.0,
            row.means.len(),
            most * 100.0,
            far * 100.0,
            likeness.map_or_else(|| "-".to_owned(), |likeness| format!("{likeness:.4}")),
        );
    }
    text
}

fn total(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_likeness() {
        assert_eq!(parts("blk.12.ffn_up.weight"), (Some(12), "ffn_up"));
        assert_eq!(parts("output.weight"), (None, "output"));
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), Some(1.0));
        assert_eq!(cosine(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(cosine(&[0.0], &[1.0]), None);
    }

    #[test]
    fn every_tensor_has_a_line() {
        let entry = Entry { sums: vec![1.0, 2.0, 3.0, 4.0], counts: vec![1.0] };
        let names = ["blk.0.attn_q.weight", "blk.1.attn_q.weight", "output.weight"];
        let entries = names.into_iter().map(|name| (name.to_owned(), entry.clone())).collect();
        let text = table(&Sums { entries, ..Sums::default() });
        assert_eq!(text.lines().count(), 4);
        // Only layer 1 has one of its kind before it, and is equal to it.
        let likeness = |layer: &str| text.lines().find(|line| line.trim_start().starts_with(layer));
        assert!(likeness("1 ").is_some_and(|line| line.ends_with(" 1.0000")), "{text}");
        assert!(likeness("0 ").is_some_and(|line| line.ends_with(" -")), "{text}");
    }
}
