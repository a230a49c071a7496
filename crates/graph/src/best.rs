//! The highest numbers of rows, for who needs no others.

/// For each row the highest of its numbers with their columns, in order; of equal numbers the lower column comes first, and zeros
/// are equal. Rows that have a number which is not finite upwards (NaN or plus infinity) say so; their list means nothing.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Best {
    count: usize,
    columns: Vec<u32>,
    numbers: Vec<f32>,
    not_finite: Vec<Option<(u32, f32)>>,
}

/// A row of [`Best`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BestRow<'b> {
    /// Columns of the highest numbers.
    pub columns: &'b [u32],
    /// These numbers.
    pub numbers: &'b [f32],
    /// The first number of the whole row that is NaN or plus infinity, with its column.
    pub not_finite: Option<(u32, f32)>,
}

impl Best {
    /// No row yet; each will have `count` numbers.
    pub fn new(count: usize) -> Self {
        Self { count, ..Self::default() }
    }

    /// The `count` highest of each row of so many numbers, or all if there are fewer.
    pub fn of(rows: &[f32], width: usize, count: usize) -> Self {
        let mut best = Self::new(count.min(width));
        for row in rows.chunks_exact(width.max(1)) {
            let bad = row.iter().position(|number| number.is_nan() || *number == f32::INFINITY);
            let mut columns: Vec<u32> = (0..width as u32).collect();
            if bad.is_none() {
                let number = |column: &u32| row[*column as usize];
                // Without NaN every two numbers compare. The sort keeps the order of equal ones.
                columns
                    .sort_by(|a, b| number(b).partial_cmp(&number(a)).unwrap_or(std::cmp::Ordering::Equal));
            }
            let found = columns.into_iter().map(|column| (column, row[column as usize]));
            best.push(found, bad.map(|column| (column as u32, row[column])));
        }
        best
    }

    /// Adds a row: its highest numbers in order with their columns, and its first number that is NaN or plus infinity.
    pub fn push(&mut self, highest: impl Iterator<Item = (u32, f32)>, not_finite: Option<(u32, f32)>) {
        for (column, number) in highest.take(self.count) {
            self.columns.push(column);
            self.numbers.push(number);
        }
        // Rows have equal lengths, whatever came.
        self.not_finite.push(not_finite);
        self.columns.resize(self.not_finite.len() * self.count, 0);
        self.numbers.resize(self.not_finite.len() * self.count, f32::NEG_INFINITY);
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.not_finite.len()
    }

    /// A row, if there is such a one.
    pub fn row(&self, index: usize) -> Option<BestRow<'_>> {
        let range = index.checked_mul(self.count)?..index.checked_add(1)?.checked_mul(self.count)?;
        Some(BestRow {
            not_finite: *self.not_finite.get(index)?,
            columns: self.columns.get(range.clone())?,
            numbers: self.numbers.get(range)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_hand() {
        let infinite = f32::NEG_INFINITY;
        let rows = [
            [1.0, 3.0, 2.0, 3.0],
            [-0.0, infinite, 0.0, infinite],
            [f32::NAN, 1.0, f32::INFINITY, 2.0],
            [1.0, 0.0, 0.0, f32::INFINITY],
        ];
        let best = Best::of(rows.as_flattened(), 4, 3);
        let row = |best: &Best, row| {
            best.row(row).map(|row| (row.columns.to_vec(), row.numbers.to_vec(), row.not_finite))
        };
        assert_eq!(best.rows(), 4);
        assert_eq!(row(&best, 0), Some((vec![1, 3, 2], vec![3.0, 3.0, 2.0], None)));
        assert_eq!(row(&best, 1), Some((vec![0, 2, 1], vec![0.0, 0.0, infinite], None)));
        let bad = |row| best.row(row).and_then(|row| row.not_finite);
        assert!(matches!(bad(2), Some((0, number)) if number.is_nan()));
        assert_eq!(bad(3), Some((3, f32::INFINITY)));
        assert_eq!(best.row(4), None);
        // No more than there are.
        let best = Best::of(&[1.0, 2.0], 2, 5);
        assert_eq!(row(&best, 0), Some((vec![1, 0], vec![2.0, 1.0], None)));
        assert_eq!(best.row(usize::MAX), None);
    }
}
