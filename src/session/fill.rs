//! How full the probe's tables are. Counting takes a system call per entry on the thread that reads
//! events, so it is done seldom, however often somebody asks.

use std::time::{Duration, Instant};

use crate::profile::TableFill;

/// How often, at most, the entries are counted; and the share of time that this may take.
const PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 100;

/// What was counted last.
#[derive(Default)]
pub(super) struct Fill {
    last: Option<Counted>,
}

struct Counted {
    at: Instant,
    took: Duration,
    tables: Vec<TableFill>,
}

impl Counted {
    fn is_fresh(&self, now: Instant) -> bool {
        now.duration_since(self.at) < PAUSE.max(self.took * SHARE)
    }
}

impl Fill {
    /// What was counted a moment ago, else what `count` finds now.
    pub(super) fn get(&mut self, count: impl FnOnce() -> Vec<TableFill>) -> Vec<TableFill> {
        let begun = Instant::now();
        match &self.last {
            Some(last) if last.is_fresh(begun) => last.tables.clone(),
            _ => {
                let tables = count();
                let at = Instant::now();
                self.last = Some(Counted {
                    at,
                    took: at.duration_since(begun),
                    tables: tables.clone(),
                });
                tables
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_often_pays_once() {
        let mut fill = Fill::default();
        let tables = |entries| {
            vec![TableFill {
                name: "pages",
                entries,
                capacity: 9,
            }]
        };
        assert_eq!(fill.get(|| tables(1)), tables(1));
        let now = Instant::now();
        let counted = |took: u64| Counted {
            at: now,
            took: Duration::from_millis(took),
            tables: Vec::new(),
        };
        let after = |ms| now + Duration::from_millis(ms);
        assert!(counted(0).is_fresh(after(999)) && !counted(0).is_fresh(after(1000)));
        // What took long is done even less often.
        assert!(counted(50).is_fresh(after(4999)) && !counted(50).is_fresh(after(5000)));
    }
}
