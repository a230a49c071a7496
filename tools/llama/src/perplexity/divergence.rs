//! Kullback-Leibler divergence of a model's predictions from recorded ones.

use super::base;
use std::fmt::Write;

/// What is known about one token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Token {
    /// Negative logarithms of its probability, here and in the recording.
    pub surprise: f64,
    pub recorded: f64,
    pub divergence: f64,
    /// Whether both find the same token most likely.
    pub same_top: bool,
}

/// Compares a row of logits with a recorded row.
pub fn compare(logits: &[f32], recorded: &[f32], target: u32) -> Token {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - highest).exp())).sum();
    let offset = f64::from(highest) + sum.ln();
    let mut divergence = 0.0;
    for (logit, recorded) in logits.iter().zip(recorded) {
        let recorded = f64::from(*recorded);
        // What was stored as the lowest value is no probability.
        if recorded > -16.0 {
            divergence += recorded.exp() * (recorded - (f64::from(*logit) - offset));
        }
    }
    let at = |values: &[f32]| values.get(target as usize).copied().map_or(f64::NAN, f64::from);
    Token {
        surprise: offset - at(logits),
        recorded: -at(recorded),
        divergence,
        same_top: top(logits) == top(recorded),
    }
}

fn top(values: &[f32]) -> Option<usize> {
    let highest = values.iter().copied().reduce(f32::max)?;
    values.iter().position(|value| *value == highest)
}

/// All tokens so far.
#[derive(Default)]
pub struct Comparison {
    pub tokens: Vec<Token>,
}

/// A mean with its standard error.
#[derive(Clone, Copy)]
struct Mean {
    mean: f64,
    error: f64,
}

impl std::fmt::Display for Mean {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:11.6} ± {:11.6}", self.mean, self.error)
    }
}

impl Comparison {
    fn mean(&self, of: impl Fn(&Token) -> f64) -> Mean {
        let count = self.tokens.len().max(1) as f64;
        let (sum, squares) = self
            .tokens
            .iter()
            .map(of)
            .fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
        let mean = sum / count;
        let variance = (squares / count - mean * mean).max(0.0);
        Mean { mean, error: if count > 1.0 { (variance / (count - 1.0)).sqrt() } else { 0.0 } }
    }

    fn covariance(&self, one: impl Fn(&Token) -> f64, other: impl Fn(&Token) -> f64) -> f64 {
        let count = self.tokens.len().max(1) as f64;
        let product: f64 = self.tokens.iter().map(|token| one(token) * other(token)).sum();
        product / count - self.mean(&one).mean * self.mean(&other).mean
    }

    /// The line after a chunk.
    pub fn line(&self, chunk: usize) -> String {
        let surprise = self.mean(|token| token.surprise);
        let ratio = self.mean(|token| token.surprise - token.recorded);
        let divergence = self.mean(|token| token.divergence);
        let (change, change_error) = self.change();
        let top = self.mean(|token| f64::from(u8::from(token.same_top)));
        let perplexity = surprise.mean.exp();
        format!(
            "{chunk:4}    {perplexity:10.4} ± {:10.4}    {:10.5} ± {:10.5}    {:10.5} ± {:10.5}    {:6.3} ± {:6.3} %    \
             {:6.3} ± {:6.3} %\n",
            perplexity * surprise.error,
            ratio.mean,
            ratio.error,
            divergence.mean,
            divergence.error,
            change * 100.0,
            change_error * 100.0,
            top.mean * 100.0,
            top.error * 100.0
        )
    }

    /// Root of the mean square of the changes of the right token's probability, and its error.
    fn change(&self) -> (f64, f64) {
        let square = self.mean(|token| change_of(token).powi(2));
        let root = square.mean.sqrt();
        (root, if root > 0.0 { 0.5 * square.error / root } else { 0.0 })
    }

    /// Everything at the end.
    pub fn report(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{words}");
        };
        let here = self.mean(|token| token.surprise);
        let there = self.mean(|token| token.recorded);
        let (perplexity, recorded) = (here.mean.exp(), there.mean.exp());
        let covariance = self.covariance(|token| token.surprise, |token| token.recorded);
        let variances = self.covariance(|token| token.surprise, |token| token.surprise)
            * self.covariance(|token| token.recorded, |token| token.recorded);
        let correlation = if variances > 0.0 { covariance / variances.sqrt() } else { f64::NAN };
        let ratio = self.mean(|token| token.surprise - token.recorded);
        let of = |mean: f64, error: f64| Mean { mean, error };
        // Errors of both perplexities are not independent.
        let count = (self.tokens.len().max(2) - 1) as f64;
        let difference = (perplexity * here.error).powi(2) + (recorded * there.error).powi(2)
            - 2.0 * perplexity * recorded * covariance / count;
        line(format_args!("\n====== Perplexity statistics ======"));
        line(format_args!("Mean PPL(Q)                   : {}", of(perplexity, perplexity * here.error)));
        line(format_args!("Mean PPL(base)                : {}", of(recorded, recorded * there.error)));
        line(format_args!("Cor(ln(PPL(Q)), ln(PPL(base))): {:6.2}%", correlation * 100.0));
        line(format_args!("Mean ln(PPL(Q)/PPL(base))     : {ratio}"));
        line(format_args!(
            "Mean PPL(Q)/PPL(base)         : {}",
            of(ratio.mean.exp(), ratio.mean.exp() * ratio.error)
        ));
        line(format_args!(
            "Mean PPL(Q)-PPL(base)         : {}",
            of(perplexity - recorded, difference.max(0.0).sqrt())
        ));
        let mut divergences: Vec<f64> = self.tokens.iter().map(|token| token.divergence).collect();
        divergences.sort_by(f64::total_cmp);
        line(format_args!("\n====== KL divergence statistics ======"));
        line(format_args!("Mean    KLD: {}", self.mean(|token| token.divergence)));
        for (name, share) in
            SHARES.iter().filter(|(name, _)| !name.starts_with("75") && !name.starts_with("25"))
        {
            line(format_args!("{name} KLD: {:11.6}", quantile(&divergences, *share)));
        }
        let mut changes: Vec<f64> = self.tokens.iter().map(change_of).collect();
        changes.sort_by(f64::total_cmp);
        line(format_args!("\n====== Token probability statistics ======"));
        let change = self.mean(change_of);
        line(format_args!("Mean    Δp: {:7.3} ± {:6.3} %", change.mean * 100.0, change.error * 100.0));
        for (name, share) in SHARES {
            line(format_args!("{name} Δp: {:7.3}%", quantile(&changes, *share) * 100.0));
        }
        let (root, error) = self.change();
        line(format_args!("RMS Δp    : {:7.3} ± {:6.3} %", root * 100.0, error * 100.0));
        let top = self.mean(|token| f64::from(u8::from(token.same_top)));
        line(format_args!("Same top p: {:7.3} ± {:6.3} %", top.mean * 100.0, top.error * 100.0));
        text
    }
}

fn change_of(token: &Token) -> f64 {
    (-token.surprise).exp() - (-token.recorded).exp()
}

const SHARES: &[(&str, f64)] = &[
    ("Maximum", 1.0),
    ("99.9%  ", 0.999),
    ("99.0%  ", 0.99),
    ("95.0%  ", 0.95),
    ("90.0%  ", 0.9),
    ("75.0%  ", 0.75),
    ("Median ", 0.5),
    ("25.0%  ", 0.25),
    ("10.0%  ", 0.1),
    ("5.0%   ", 0.05),
    ("1.0%   ", 0.01),
    ("0.1%   ", 0.001),
    ("Minimum", 0.0),
];

/// The value below which this share of sorted values lies, between neighbours by distance.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let (low, part) = (place.floor(), place.fract());
    let at = |index: f64| sorted.get(index as usize).copied().unwrap_or(f64::NAN);
    if part == 0.0 { at(low) } else { at(low) * (1.0 - part) + at(low + 1.0) * part }
}

/// The heading of the lines.
pub const HEADING: &str = "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              \
                           Δp RMS            Same top p\n";

/// Compares the rows of one chunk, spread over threads.
pub fn compare_rows(
    logits: &[f32],
    width: usize,
    recorded: &[u8],
    targets: &[u32],
    threads: usize,
) -> Vec<Token> {
    let bytes = base::row_bytes(width as u32);
    let share = targets.len().div_ceil(threads.max(1)).max(1);
    let nothing = Token { surprise: 0.0, recorded: 0.0, divergence: 0.0, same_top: false };
    let mut tokens = vec![nothing; targets.len()];
    std::thread::scope(|scope| {
        let parts = tokens
            .chunks_mut(share)
            .zip(targets.chunks(share))
            .zip(logits.chunks(share * width).zip(recorded.chunks(share * bytes)));
        for ((tokens, targets), (logits, recorded)) in parts {
            scope.spawn(move || {
                let mut row = Vec::new();
                let rows = logits.chunks(width).zip(recorded.chunks(bytes));
                for ((token, target), (logits, recorded)) in tokens.iter_mut().zip(targets).zip(rows) {
                    base::decode(recorded, width as u32, &mut row);
                    *token = compare(logits, &row, *target);
                }
            });
        }
    });
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_does_not_diverge_from_itself() {
        let logits = [0.5f32, 2.0, -1.0];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let recorded: Vec<f32> = logits.iter().map(|logit| logit - sum.ln() as f32).collect();
        let token = compare(&logits, &recorded, 1);
        assert!(token.divergence.abs() < 1e-6 && token.same_top);
        assert!((token.surprise - token.recorded).abs() < 1e-6);
        // Against equal chances: the sum over p · (ln p − ln 1/3).
        let flat = [0.0f32; 3];
        let expected: f64 = recorded.iter().map(|x| f64::from(*x).exp() * (f64::from(*x) + 3f64.ln())).sum();
        let token = compare(&flat, &recorded, 0);
        assert!((token.divergence - expected).abs() < 1e-6, "{} {expected}", token.divergence);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let sorted = [1.0, 2.0, 4.0];
        for (share, expected) in [(0.0, 1.0), (1.0, 4.0), (0.5, 2.0), (0.75, 3.0)] {
            assert_eq!(quantile(&sorted, share), expected);
        }
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_report_has_all_its_lines() {
        let token = |surprise| Token { surprise, recorded: 1.0, divergence: 0.1, same_top: true };
        let comparison = Comparison { tokens: vec![token(1.0), token(1.5), token(0.5)] };
        let report = comparison.report();
        for words in ["Mean PPL(Q)  ", "Mean    KLD:    0.100000", "Same top p: 100.000", "Median  Δp"] {
            assert!(report.contains(words), "{words}: {report}");
        }
        assert!(comparison.line(1).starts_with("   1 "));
    }
}
