//! Encodes one tensor after another on all threads, a few million elements at a time.

use crate::failure::Failure;
use puna_gguf::TensorInfo;
use puna_quant::{DType, QuantError, decode_row, quantize_rows};
use std::sync::Mutex;

/// Elements that a thread takes at once, rounded to whole rows.
const PIECE: usize = 1 << 17;

/// One tensor to be encoded.
pub struct Job<'a> {
    pub tensor: &'a TensorInfo,
    /// Its data.
    pub data: &'a [u8],
    /// The format to write.
    pub dtype: DType,
    /// Importance of the columns of each matrix.
    pub importance: Option<&'a [f32]>,
}

/// Rows of one matrix for one thread.
struct Piece<'a> {
    source: &'a [u8],
    target: &'a mut [u8],
    importance: Option<&'a [f32]>,
    /// First row, for messages.
    row: usize,
}

impl Job<'_> {
    /// Encodes everything in order and hands the bytes to `write`.
    pub fn run(
        &self,
        threads: usize,
        write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let elements = usize::try_from(self.tensor.elements()).unwrap_or(usize::MAX);
        let row = self.tensor.shape.last().copied().unwrap_or(1).max(1) as usize;
        let rows = elements / row;
        // Importance belongs to a matrix, so no piece reaches over two of them.
        let matrices = self.importance.map_or(1, |columns| columns.len() / row).max(1);
        let per_matrix = (rows / matrices).max(1);
        let (source_row, target_row) = (self.data.len() / rows.max(1), row_bytes(self.dtype, row));
        let share = (PIECE / row).max(1);
        let batch = share * threads.max(1) * 2;
        let mut buffer = Vec::new();
        for matrix in 0..rows.div_ceil(per_matrix) {
            let columns = self.importance.and_then(|all| all.get(matrix * row..(matrix + 1) * row));
            let end = ((matrix + 1) * per_matrix).min(rows);
            let mut first = matrix * per_matrix;
            while first < end {
                let count = batch.min(end - first);
                buffer.resize(count * target_row, 0);
                let source = self.data.get(first * source_row..(first + count) * source_row).unwrap_or(&[]);
                let sources = source.chunks(share * source_row);
                let targets = buffer.chunks_mut(share * target_row);
                let pieces = sources.zip(targets).enumerate().map(|(number, (source, target))| Piece {
                    source,
                    target,
                    importance: columns,
                    row: first + number * share,
                });
                encode(self.tensor.dtype, self.dtype, row, threads, pieces.collect()).map_err(
                    |(row, error)| {
                        let (name, dtype) = (&self.tensor.name, self.dtype);
                        Failure::Failed(format!("tensor {name}, row {row}, as {dtype}: {error}"))
                    },
                )?;
                write(&buffer)?;
                first += count;
            }
        }
        Ok(())
    }
}

fn row_bytes(dtype: DType, row: usize) -> usize {
    dtype.bytes_for(row as u64).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}

/// Encodes pieces on several threads. The error is that of the first row.
fn encode(
    from: DType,
    to: DType,
    row: usize,
    threads: usize,
    pieces: Vec<Piece<'_>>,
) -> Result<(), (usize, QuantError)> {
    let threads = threads.clamp(1, pieces.len().max(1));
    let queue = Mutex::new(pieces.into_iter());
    let failure: Mutex<Option<(usize, QuantError)>> = Mutex::new(None);
    let work = || {
        let mut elements = Vec::new();
        loop {
            let next = queue.lock().ok().and_then(|mut queue| queue.next());
            let Some(piece) = next else { return };
            elements.resize(piece.source.len() / row_bytes(from, row).max(1) * row, 0.0);
            let found = decode_row(from, piece.source, &mut elements)
                .and_then(|()| quantize_rows(to, &elements, piece.importance, piece.target));
            if let (Err(error), Ok(mut failure)) = (found, failure.lock())
                && failure.as_ref().is_none_or(|(first, _)| piece.row < *first)
            {
                let inside = match error {
                    QuantError::Element { index, .. } => index / row,
                    _ => 0,
                };
                *failure = Some((piece.row + inside, error));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().ok().flatten().map_or(Ok(()), Err)
}
