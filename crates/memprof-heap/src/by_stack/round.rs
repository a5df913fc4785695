//! Whole bytes that add up.

/// Divides `all` in proportion to the shares, in whole numbers that add up to it: each is the next lower one, and those with
/// the largest remainders get one more. All zero if the shares are.
pub(super) fn apportion(all: u64, shares: &[f64]) -> Vec<u64> {
    let usable = |share: f64| {
        if share.is_finite() {
            share.max(0.0)
        } else {
            0.0
        }
    };
    let sum: f64 = shares.iter().map(|share| usable(*share)).sum();
    if sum <= 0.0 || !sum.is_finite() {
        return vec![0; shares.len()];
    }
    let mut left = all;
    let mut parts = Vec::with_capacity(shares.len());
    let mut remainders = Vec::with_capacity(shares.len());
    for (index, share) in shares.iter().enumerate() {
        let exact = all as f64 * (usable(*share) / sum);
        // (Numbers beyond 2^53 are rounded: never give more than there is.)
        let part = (exact as u64).min(left);
        left -= part;
        parts.push(part);
        remainders.push((exact - part as f64, index));
    }
    remainders.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let each = left / shares.len() as u64;
    let more = (left % shares.len() as u64) as usize;
    for (rank, (_, index)) in remainders.into_iter().enumerate() {
        parts[index] += each + u64::from(rank < more);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        assert_eq!(apportion(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        assert_eq!(apportion(7, &[0.0, 5.0]), [0, 7]);
        assert_eq!(apportion(7, &[0.0, f64::NAN]), [0, 0]);
        assert_eq!(apportion(3, &[]), [0; 0]);
        assert_eq!(apportion(1, &[0.2, 0.5, 0.3]), [0, 1, 0]);
        for all in [0, 1, 12_345, u64::MAX / 2] {
            let parts = apportion(all, &[0.1, 1e9, 3.3, 7.0, 1e-12]);
            assert_eq!(parts.iter().sum::<u64>(), all);
        }
    }
}
