//! The kinds of files that `quantize` writes.

use puna_flags::closest;
use puna_quant::DType;

/// What `general.file_type` says: the format of most tensors and the rules for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each variant is the file type of that name
#[allow(non_camel_case_types)]
pub enum FileType {
    F32,
    F16,
    Bf16,
    Q1_0,
    Q2_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q2KS,
    Q3KS,
    Q3KM,
    Q3KL,
    Q4KS,
    Q4KM,
    Q5KS,
    Q5KM,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq2M,
    Iq3Xxs,
    Iq3Xs,
    Iq3S,
    Iq3M,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4Moe,
}

/// One row of [`FILE_TYPES`].
pub struct Row {
    pub file_type: FileType,
    /// Number in the file.
    pub id: u32,
    /// Names on the command line, the usual one first.
    pub names: &'static [&'static str],
    /// Format of most tensors.
    pub dtype: DType,
}

const fn row(file_type: FileType, id: u32, names: &'static [&'static str], dtype: DType) -> Row {
    Row { file_type, id, names, dtype }
}

/// All file types that can be written.
pub static FILE_TYPES: &[Row] = &[
    row(FileType::Q1_0, 40, &["Q1_0"], DType::Q1_0),
    row(FileType::Q2_0, 41, &["Q2_0"], DType::Q2_0),
    row(FileType::Q4_0, 2, &["Q4_0"], DType::Q4_0),
    row(FileType::Q4_1, 3, &["Q4_1"], DType::Q4_1),
    row(FileType::Mxfp4Moe, 38, &["MXFP4_MOE"], DType::MXFP4),
    row(FileType::Q5_0, 8, &["Q5_0"], DType::Q5_0),
    row(FileType::Q5_1, 9, &["Q5_1"], DType::Q5_1),
    row(FileType::Iq2Xxs, 19, &["IQ2_XXS"], DType::IQ2_XXS),
    row(FileType::Iq2Xs, 20, &["IQ2_XS"], DType::IQ2_XS),
    row(FileType::Iq2S, 28, &["IQ2_S"], DType::IQ2_XS),
    row(FileType::Iq2M, 29, &["IQ2_M"], DType::IQ2_S),
    row(FileType::Iq1S, 24, &["IQ1_S"], DType::IQ1_S),
    row(FileType::Iq1M, 31, &["IQ1_M"], DType::IQ1_M),
    row(FileType::Tq1_0, 36, &["TQ1_0"], DType::TQ1_0),
    row(FileType::Tq2_0, 37, &["TQ2_0"], DType::TQ2_0),
    row(FileType::Q2K, 10, &["Q2_K"], DType::Q2_K),
    row(FileType::Q2KS, 21, &["Q2_K_S"], DType::Q2_K),
    row(FileType::Iq3Xxs, 23, &["IQ3_XXS"], DType::IQ3_XXS),
    row(FileType::Iq3S, 26, &["IQ3_S"], DType::IQ3_S),
    row(FileType::Iq3M, 27, &["IQ3_M"], DType::IQ3_S),
    row(FileType::Iq3Xs, 22, &["IQ3_XS"], DType::IQ3_S),
    row(FileType::Q3KS, 11, &["Q3_K_S"], DType::Q3_K),
    row(FileType::Q3KM, 12, &["Q3_K_M", "Q3_K"], DType::Q3_K),
    row(FileType::Q3KL, 13, &["Q3_K_L"], DType::Q3_K),
    row(FileType::Iq4Nl, 25, &["IQ4_NL"], DType::IQ4_NL),
    row(FileType::Iq4Xs, 30, &["IQ4_XS"], DType::IQ4_XS),
    row(FileType::Q4KS, 14, &["Q4_K_S"], DType::Q4_K),
    row(FileType::Q4KM, 15, &["Q4_K_M", "Q4_K"], DType::Q4_K),
    row(FileType::Q5KS, 16, &["Q5_K_S"], DType::Q5_K),
    row(FileType::Q5KM, 17, &["Q5_K_M", "Q5_K"], DType::Q5_K),
    row(FileType::Q6K, 18, &["Q6_K"], DType::Q6_K),
    row(FileType::Q8_0, 7, &["Q8_0"], DType::Q8_0),
    row(FileType::F16, 1, &["F16"], DType::F16),
    row(FileType::Bf16, 32, &["BF16"], DType::BF16),
    row(FileType::F32, 0, &["F32"], DType::F32),
];

/// The row with this name, in any case, or number.
pub fn find(text: &str) -> Option<&'static Row> {
    let number = text.parse::<u32>().ok();
    FILE_TYPES
        .iter()
        .find(|row| number == Some(row.id) || row.names.iter().any(|name| name.eq_ignore_ascii_case(text)))
}

/// What to say of a type that there is not.
pub fn unknown(text: &str) -> String {
    let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_uppercase();
    let names: Vec<(&str, String)> =
        FILE_TYPES.iter().flat_map(|row| row.names).map(|name| (*name, plain(name))).collect();
    let near = closest(&plain(text), names.iter().map(|(_, plain)| plain.as_str()));
    let near = names.iter().find(|(_, plain)| near == Some(plain));
    let hint = near.map_or_else(
        || {
            format!(
                "expected COPY or one of {}",
                names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
            )
        },
        |(name, _)| format!("did you mean {name}?"),
    );
    format!("unknown type {text:?}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        for (text, expected) in [
            ("q4_k", FileType::Q4KM),
            ("15", FileType::Q4KM),
            ("IQ2_S", FileType::Iq2S),
            ("0", FileType::F32),
        ] {
            assert_eq!(find(text).map(|row| row.file_type), Some(expected), "{text}");
        }
        assert!(find("Q9").is_none() && find("4").is_none() && find("-1").is_none());
    }

    #[test]
    fn an_unknown_type_has_a_suggestion_or_a_list() {
        assert_eq!(unknown("q4km"), "unknown type \"q4km\"; did you mean Q4_K_M?");
        assert_eq!(unknown("Q8-0"), "unknown type \"Q8-0\"; did you mean Q8_0?");
        let text = unknown("Q99");
        assert!(text.contains("one of Q1_0 Q2_0 ") && text.ends_with(" BF16 F32"), "{text}");
    }
}
