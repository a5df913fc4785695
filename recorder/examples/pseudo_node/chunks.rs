//! Where a stream of messages is cut into chunks.

use fastrand::Rng;

use crate::forms::ChunkForm;

/// Maximum of the plain text of a chunk, in bytes.
const MAX: usize = 65_535 - 16;
/// Maximum that Octez puts into a chunk, in bytes.
const OCTEZ: usize = 65_517;

/// The sizes of the chunks for messages of these sizes, in bytes of plain text.
pub fn cut(form: ChunkForm, sizes: &[usize], rng: &mut Rng) -> Vec<usize> {
    let total = sizes.iter().sum();
    let whole = || sizes.iter().flat_map(|size| parts(*size, OCTEZ));
    match form {
        ChunkForm::Message => whole().collect(),
        ChunkForm::Max => parts(total, MAX).collect(),
        ChunkForm::Byte => vec![1; total],
        ChunkForm::Empty => {
            let empty = |size| std::iter::repeat_n(0, rng.usize(0..=3)).chain([size]);
            whole().flat_map(empty).collect()
        }
        ChunkForm::Packed => packed(sizes, rng),
        ChunkForm::Straddle => straddling(total, rng),
        ChunkForm::Any => {
            let last = if total <= 10_000 { 6 } else { 5 };
            let form = match rng.u8(0..last) {
                0 => ChunkForm::Message,
                1 => ChunkForm::Max,
                2 => ChunkForm::Empty,
                3 => ChunkForm::Packed,
                4 => ChunkForm::Straddle,
                _ => ChunkForm::Byte,
            };
            cut(form, sizes, rng)
        }
    }
}

fn parts(size: usize, max: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(max).map(move |at| (size - at).min(max))
}

fn packed(sizes: &[usize], rng: &mut Rng) -> Vec<usize> {
    let (mut chunks, mut open, mut left) = (Vec::new(), 0, 0);
    for size in sizes {
        if left == 0 || open + size > MAX {
            chunks.extend(parts(open, MAX));
            (open, left) = (0, rng.usize(2..=8));
        }
        open += size;
        left -= 1;
    }
    chunks.extend(parts(open, MAX));
    chunks
}

fn straddling(total: usize, rng: &mut Rng) -> Vec<usize> {
    let (mut chunks, mut left) = (Vec::new(), total);
    let max = (total / 20).clamp(400, MAX);
    while left > 0 {
        let size = rng.usize(1..=max).min(left);
        chunks.push(size);
        left -= size;
    }
    chunks
}
