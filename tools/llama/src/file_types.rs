//! What kind of model a file is, in a few words: `gemma3 270M Q4_0`.

use crate::console;
use puna_gguf::File;

/// Names of `general.file_type`.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "all F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K - Medium"),
    (11, "Q3_K - Small"),
    (12, "Q3_K - Medium"),
    (13, "Q3_K - Large"),
    (14, "Q4_K - Small"),
    (15, "Q4_K - Medium"),
    (16, "Q5_K - Small"),
    (17, "Q5_K - Medium"),
    (18, "Q6_K"),
    (19, "IQ2_XXS - 2.0625 bpw"),
    (20, "IQ2_XS - 2.3125 bpw"),
    (21, "Q2_K - Small"),
    (22, "IQ3_XS - 3.3 bpw"),
    (23, "IQ3_XXS - 3.0625 bpw"),
    (24, "IQ1_S - 1.5625 bpw"),
    (25, "IQ4_NL - 4.5 bpw"),
    (26, "IQ3_S - 3.4375 bpw"),
    (27, "IQ3_S mix - 3.66 bpw"),
    (28, "IQ2_S - 2.5 bpw"),
    (29, "IQ2_M - 2.7 bpw"),
    (30, "IQ4_XS - 4.25 bpw"),
    (31, "IQ1_M - 1.75 bpw"),
    (32, "BF16"),
    (36, "TQ1_0 - 1.69 bpw ternary"),
    (37, "TQ2_0 - 2.06 bpw ternary"),
    (38, "MXFP4 MoE"),
];

/// Sizes that llama.cpp goes by, for the architecture `llama` with so many layers. This column is how people compare
/// measurements, so it says the same even where the name does not fit.
const LLAMA_SIZES: &[(u32, &str)] = &[
    (16, "1B"),
    (22, "1B"),
    (26, "3B"),
    (28, "3B"),
    (30, "256M"),
    (36, "8B"),
    (40, "13B"),
    (48, "34B"),
    (60, "30B"),
];

/// Architecture, size and number format.
pub fn description(file: &File) -> String {
    let architecture = file.metadata.str_or("general.architecture", "?").unwrap_or("?");
    let label = file.metadata.optional_str("general.size_label").ok().flatten();
    let elements = file.tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements()));
    let layers = file.metadata.optional_u32("llama.block_count").ok().flatten();
    let known = LLAMA_SIZES.iter().find(|(count, _)| architecture == "llama" && Some(*count) == layers);
    let size = known.map(|(_, size)| *size).or(label).map_or_else(|| rounded(elements), str::to_owned);
    let kind = file.metadata.optional_u32("general.file_type").ok().flatten();
    let known = kind.and_then(|kind| FILE_TYPES.iter().find(|(id, _)| *id == kind));
    let format = match known {
        Some((_, name)) => (*name).to_owned(),
        None => largest_format(file),
    };
    console::printable(&format!("{architecture} {size} {format}"), 100)
}

/// The number format that most bytes have.
fn largest_format(file: &File) -> String {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for tensor in file.tensors.iter() {
        let (name, bytes) = (tensor.dtype.name(), tensor.byte_len());
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => sums.push((name, bytes)),
        }
    }
    sums.into_iter().max_by_key(|(_, bytes)| *bytes).map_or_else(String::new, |(name, _)| name.to_owned())
}

/// `135M`, `1.1B`, `70B`.
fn rounded(elements: u64) -> String {
    let (value, unit) = match elements as f64 {
        value if value >= 1e12 => (value / 1e12, "T"),
        value if value >= 1e9 => (value / 1e9, "B"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value => (value / 1e3, "K"),
    };
    if value < 10.0 && unit != "M" && unit != "K" {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (elements, expected) in
            [(0, "0K"), (134_515_008, "135M"), (1_100_048_384, "1.1B"), (70_553_706_496, "71B")]
        {
            assert_eq!(rounded(elements), expected);
        }
    }
}
