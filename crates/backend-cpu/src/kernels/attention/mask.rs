//! Which cells a token sees.

/// Rule by position; `q` is the position of the token, `k` that of the cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MaskRule {
    /// `k <= q`.
    Causal,
    /// `k <= q` and `q - k < n`.
    Window(u32),
    /// `k <= q` and both in the same chunk of `n` positions.
    Chunked(u32),
    /// `|q - k| <= n / 2`.
    SymmetricWindow(u32),
    /// All.
    Bidirectional,
}

impl MaskRule {
    /// First and last position that a token at position `q` sees; the last is below the first if it sees none.
    pub fn interval(self, q: i32) -> (i32, i32) {
        let back = |n: u32| q.saturating_sub(i32::try_from(n).unwrap_or(i32::MAX));
        match self {
            Self::Causal => (i32::MIN, q),
            Self::Window(n) => (back(n).saturating_add(1), q),
            Self::Chunked(n) => {
                let into = i32::try_from(i64::from(q).rem_euclid(i64::from(n.max(1)))).unwrap_or(i32::MAX);
                (q.saturating_sub(into), q)
            }
            Self::SymmetricWindow(n) => {
                (back(n / 2), q.saturating_add(i32::try_from(n / 2).unwrap_or(i32::MAX)))
            }
            Self::Bidirectional => (i32::MIN, i32::MAX),
        }
    }
}
