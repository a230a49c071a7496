//! Files with the log-probabilities of all tokens, for others to be compared with.

use crate::failure::Failure;
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8; 8] = b"_logits_";
/// Log-probabilities further below the highest are stored as the lowest.
const SPAN: f32 = 16.0;
/// Most tokens of a file that are believed.
const MOST: usize = 1 << 31;

/// What a file says before its rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Tokens of a chunk.
    pub length: u32,
    pub vocabulary: u32,
    pub chunks: u32,
    /// Of all chunks, one after another.
    pub tokens: Vec<u32>,
}

/// Rows of a chunk: tokens of its second half, without the last.
pub fn rows_of(length: u32) -> usize {
    (length as usize).saturating_sub(1 + length as usize / 2)
}

/// 16-bit numbers of a row.
fn row_numbers(vocabulary: u32) -> usize {
    2 * (vocabulary as usize).div_ceil(2) + 4
}

impl Head {
    /// Its bytes in the file.
    pub fn bytes(&self) -> Vec<u8> {
        let numbers = [self.length, self.vocabulary, self.chunks];
        let numbers = numbers.iter().chain(&self.tokens).flat_map(|number| number.to_le_bytes());
        MAGIC.iter().copied().chain(numbers).collect()
    }

    /// Reads it; the file must hold as many rows as it says.
    pub fn read(path: &Path, file: &mut std::fs::File) -> Result<Self, Failure> {
        let failed = |text: &str| Failure::Failed(format!("{}: {text}", path.display()));
        let size = file.metadata().map_err(|error| failed(&error.to_string()))?.len();
        let mut begin = [0; 20];
        file.read_exact(&mut begin).map_err(|_| failed("this is no file with log-probabilities"))?;
        let number = |at: usize| {
            begin
                .get(at..at + 4)
                .and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)))
                .unwrap_or(0)
        };
        let (length, vocabulary, chunks) = (number(8), number(12), number(16));
        let count = (length as usize).checked_mul(chunks as usize).filter(|count| *count < MOST);
        let rows = rows_of(length) as u64 * u64::from(chunks);
        let needed = count.map(|count| 20 + 4 * count as u64 + rows * 2 * row_numbers(vocabulary) as u64);
        if begin.get(..8) != Some(MAGIC) || length < 2 || vocabulary == 0 || chunks == 0 {
            return Err(failed("this is no file with log-probabilities"));
        }
        if needed.is_none_or(|needed| size < needed) {
            return Err(failed("it is shorter than it says"));
        }
        let mut bytes = vec![0; 4 * count.unwrap_or(0)];
        file.read_exact(&mut bytes).map_err(|error| failed(&error.to_string()))?;
        let tokens = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(Self { length, vocabulary, chunks, tokens })
    }
}

/// One row: a line of 16-bit steps from the lowest log-probability to the highest.
pub fn encode(logits: &[f32], out: &mut Vec<u8>) {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lowest = logits.iter().copied().fold(f32::INFINITY, f32::min).max(highest - SPAN);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    let least = lowest - highest - sum.ln() as f32;
    let step = (highest - lowest) / 65535.0;
    out.extend(step.to_le_bytes());
    out.extend(least.to_le_bytes());
    for logit in logits {
        let steps = if step > 0.0 && *logit > lowest { ((logit - lowest) / step).round() as u16 } else { 0 };
        out.extend(steps.to_le_bytes());
    }
    if logits.len() % 2 == 1 {
        out.extend([0, 0]);
    }
}

/// The log-probabilities of a row's bytes.
pub fn decode(bytes: &[u8], vocabulary: u32, out: &mut Vec<f32>) {
    out.clear();
    let float = |at: usize| {
        bytes
            .get(at..at + 4)
            .and_then(|bytes| Some(f32::from_le_bytes(bytes.try_into().ok()?)))
            .unwrap_or(f32::NAN)
    };
    let (step, least) = (float(0), float(4));
    let steps = bytes.get(8..).unwrap_or(&[]).as_chunks().0.iter().take(vocabulary as usize);
    out.extend(steps.map(|steps| least + step * f32::from(u16::from_le_bytes(*steps))));
}

/// Bytes of a row.
pub fn row_bytes(vocabulary: u32) -> usize {
    2 * row_numbers(vocabulary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_probabilities() {
        let logits = [1.0, -3.0, 0.5, 2.0, -100.0];
        let mut bytes = Vec::new();
        encode(&logits, &mut bytes);
        assert_eq!(bytes.len(), row_bytes(5));
        let mut decoded = Vec::new();
        decode(&bytes, 5, &mut decoded);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - 2.0).exp()).sum();
        for (logit, found) in logits.iter().zip(&decoded) {
            let right = f64::from(logit.max(2.0 - SPAN) - 2.0) - sum.ln();
            assert!((f64::from(*found) - right).abs() < 2e-4, "{found} {right}");
        }
    }

    #[test]
    fn heads_are_checked_against_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("base");
        let head = Head { length: 4, vocabulary: 3, chunks: 2, tokens: (0..8).collect() };
        let mut bytes = head.bytes();
        bytes.resize(bytes.len() + 2 * rows_of(4) * row_bytes(3), 0);
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("it is written");
            Head::read(&path, &mut std::fs::File::open(&path).expect("it is there"))
        };
        assert_eq!(read(&bytes).expect("it is whole"), head);
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length}");
        }
        bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(&bytes).is_err());
    }
}
