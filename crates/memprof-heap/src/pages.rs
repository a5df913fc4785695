//! How much of each resident page of a heap is live. A page stays in memory if any part of it is.

use super::sizes::Sizes;

/// Counts pages while ranges are added in address order.
#[derive(Debug)]
pub(super) struct Occupancy {
    page: u64,
    /// Pages by tenths that are live.
    pages: [u64; 11],
    /// Number of the page that is being added.
    current: u64,
    /// Whether there is one.
    any: bool,
    live: u64,
    free: u64,
    /// Live bytes on this page by size class.
    classes: Vec<(usize, u64)>,
}

impl Occupancy {
    /// None yet, of pages of this many bytes.
    pub(super) fn new(page: u64) -> Occupancy {
        Occupancy {
            page,
            pages: [0; 11],
            current: 0,
            any: false,
            live: 0,
            free: 0,
            classes: Vec::new(),
        }
    }

    /// Adds resident bytes: of a live chunk of the size class `live`, free ones, or the allocator's own.
    pub(super) fn add(
        &mut self,
        start: u64,
        end: u64,
        live: Option<usize>,
        free: bool,
        sizes: &mut Sizes,
    ) {
        let mut at = start;
        while at < end {
            let number = at / self.page;
            if !self.any || number != self.current {
                self.finish(sizes);
                (self.current, self.any) = (number, true);
            }
            let whole = (end / self.page).saturating_sub(number);
            if at.is_multiple_of(self.page) && whole > 1 {
                // Pages that are entirely alike.
                self.any = false;
                self.pages[if live.is_some() { 10 } else { 0 }] += whole;
                at += whole * self.page;
                continue;
            }
            let stop = end.min((number + 1) * self.page);
            let len = stop - at;
            if let Some(class) = live {
                self.live += len;
                match self.classes.last_mut() {
                    Some((last, bytes)) if *last == class => *bytes += len,
                    _ => self.classes.push((class, len)),
                }
            } else if free {
                self.free += len;
            }
            at = stop;
        }
    }

    /// Counts the last page.
    pub(super) fn finish(&mut self, sizes: &mut Sizes) {
        if self.any {
            self.pages[(self.live * 10).div_ceil(self.page) as usize] += 1;
            for (class, bytes) in self.classes.drain(..) {
                sizes.pin(class, self.free * bytes / self.live);
            }
        }
        (self.any, self.live, self.free) = (false, 0, 0);
    }

    /// Number of pages by tenths that are live: none, up to 10 %, and so on.
    pub(super) fn pages(&self) -> [u64; 11] {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_by_what_is_live_on_them() {
        let (mut occupancy, mut sizes) = (Occupancy::new(4096), Sizes::default());
        let class = sizes.add(100, true);
        let mut add = |start, end, live: bool| {
            occupancy.add(start, end, live.then_some(class), !live, &mut sizes);
        };
        add(0, 4096, true);
        add(4096, 4100, false);
        add(4100, 4200, true);
        add(4200, 5 * 4096 + 10, false);
        add(5 * 4096 + 10, 9 * 4096, true);
        occupancy.finish(&mut sizes);
        let pages = occupancy.pages();
        // One with 100 bytes, three without any, one with all but ten, three and the first one in full.
        assert_eq!((pages[0], pages[1], pages[10]), (3, 1, 5));
        assert_eq!(pages.iter().sum::<u64>(), 9);
        let pinned = sizes.classes()[0].pinned;
        assert_eq!(pinned, 3996 + 10);
    }
}
