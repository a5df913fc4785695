//! jemalloc's size classes: four for each doubling of size.

/// Number of classes.
pub(super) const COUNT: u64 = 232;
/// Number of those whose regions share slabs.
pub(super) const SMALL: u64 = 36;

/// Size of the regions of a class, in bytes.
pub(super) fn size(class: u64) -> u64 {
    match class {
        0 => 8,
        1..5 => 16 * class,
        _ => {
            let (doubling, step) = ((class - 5) / 4, (class - 5) % 4 + 1);
            let base = 64_u64.checked_shl(doubling as u32).unwrap_or(0);
            base + step * (base / 4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_manual() {
        let sizes: Vec<u64> = (0..14).map(size).collect();
        assert_eq!(
            sizes,
            [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]
        );
        assert_eq!((size(SMALL - 1), size(SMALL)), (14 << 10, 16 << 10));
        assert_eq!(size(COUNT - 1), 7 << 60);
    }
}
