//! The balance of a control group: what the kernel charges to it, beside memprof's sums of its processes.

use std::borrow::Cow;
use std::path::PathBuf;

use memprof_sys::residency::cgroup::{GroupFigures, Version};
use memprof_sys::usage::Usage;

/// The memory of a followed control group when a profile was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Its directory.
    pub dir: PathBuf,
    /// What the kernel charges to it, or why that is not known.
    pub charged: Result<(Version, GroupFigures), String>,
}

/// One row of the balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceRow {
    /// Its name.
    pub name: &'static str,
    /// The kernel's figure in bytes; that of [`UNEXPLAINED`] can be negative.
    pub charged: i64,
    /// memprof's sum of the followed processes in bytes; `None` where it has none.
    pub memprof: Option<u64>,
    /// What the row, or the difference, is.
    pub note: String,
    /// What the row contains, in bytes, as far as the kernel counts it.
    pub parts: Vec<(Cow<'static, str>, u64)>,
}

impl BalanceRow {
    /// The kernel's figure without memprof's.
    pub fn difference(&self) -> Option<i64> {
        self.memprof.map(|ours| self.charged - signed(ours))
    }
}

/// Name of the row that closes the balance.
pub const UNEXPLAINED: &str = "unexplained";

const SHARED: &str = "pages that several followed processes map, counted for each, or that are charged to other groups";

impl CgroupMemory {
    /// The rows. If the group has a total, they add up to it; the last one is what no other row explains.
    /// `ours` is memprof's total.
    pub fn balance(&self, ours: &Usage) -> Vec<BalanceRow> {
        let Ok((version, figures)) = &self.charged else {
            return Vec::new();
        };
        let compared = |name, charged, memprof, more: &str, less: &str| {
            let note = match signed(charged) - signed(memprof) {
                0 => "equal",
                1.. => more,
                _ => less,
            };
            BalanceRow {
                name,
                charged: signed(charged),
                memprof: Some(memprof),
                note: note.to_owned(),
                parts: Vec::new(),
            }
        };
        let alone = |name, charged, note: &str, parts| BalanceRow {
            name,
            charged: signed(charged),
            memprof: None,
            note: note.to_owned(),
            parts,
        };
        let file = compared(
            "file",
            figures.file,
            ours.cache,
            "page cache from before memprof attached, or of processes that it does not follow or that have left",
            "page cache that is charged to other groups",
        );
        let kernel = match version {
            Version::One => {
                "kernel memory (memory.kmem.usage_in_bytes); version 1 does not divide it"
            }
            Version::Two => "kernel memory",
        };
        let mut rows = vec![
            compared(
                "anon",
                figures.anon,
                ours.anon,
                "of processes that memprof does not follow, or that have left the group",
                SHARED,
            ),
            compared(
                "shmem",
                figures.shmem,
                ours.shmem,
                "no followed process maps at least so much: files on tmpfs, memfds, System V segments",
                SHARED,
            ),
            BalanceRow {
                parts: vec![("mapped, with shmem".into(), figures.mapped)],
                ..file
            },
            alone(
                "kernel",
                figures.kernel,
                kernel,
                figures.kernel_parts.clone(),
            ),
            alone("sock", figures.sock, "socket buffers", Vec::new()),
            alone(
                "hugetlb",
                figures.hugetlb,
                "huge pages of hugetlbfs",
                Vec::new(),
            ),
        ];
        rows.retain(|row| row.charged != 0 || row.memprof.is_some() || row.name == "kernel");
        if let Some(usage) = figures.usage {
            let explained: i64 = rows.iter().map(|row| row.charged).sum();
            rows.push(remainder(signed(usage) - explained, figures));
        }
        rows
    }

    /// Why there is no total, if there is none.
    pub fn without_total(&self) -> Option<String> {
        match &self.charged {
            Err(why) => Some(why.clone()),
            Ok((version, figures)) if figures.usage.is_none() => Some(format!(
                "{} has no {}: the root group is charged with nothing, the rows are the kernel's figures for it; \
                 /proc/meminfo has the machine's",
                self.dir.display(),
                version.usage_file()
            )),
            Ok(_) => None,
        }
    }
}

fn remainder(bytes: i64, figures: &GroupFigures) -> BalanceRow {
    let within = match bytes.unsigned_abs() <= figures.tolerance + figures.swap_cache {
        true => "within",
        false => "more than",
    };
    let kib = figures.tolerance / 1024;
    let mut note =
        format!("{within} {kib} KiB that CPUs charge in advance and statistics lag behind");
    let parts = match figures.swap_cache {
        0 => Vec::new(),
        cache => {
            note += ", and swap cache that no process maps";
            vec![("swap cache, mapped or not".into(), cache)]
        }
    };
    BalanceRow {
        name: UNEXPLAINED,
        charged: bytes,
        memprof: None,
        note,
        parts,
    }
}

/// Bytes stay far below 2^63.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(usage: Option<u64>) -> CgroupMemory {
        let figures = GroupFigures {
            usage,
            anon: 100,
            shmem: 50,
            file: 20,
            kernel: 30,
            tolerance: 10,
            ..GroupFigures::default()
        };
        CgroupMemory {
            dir: "/sys/fs/cgroup/x".into(),
            charged: Ok((Version::Two, figures)),
        }
    }

    #[test]
    fn the_rows_add_up_to_the_usage_even_if_statistics_run_ahead() {
        for usage in [0, 150, 200, 205, 1000] {
            let rows = group(Some(usage)).balance(&Usage::default());
            let sum: i64 = rows.iter().map(|row| row.charged).sum();
            assert_eq!(sum, signed(usage));
            let last = rows.last().unwrap();
            assert_eq!(last.name, UNEXPLAINED);
            assert_eq!(last.note.starts_with("within"), usage.abs_diff(200) <= 10);
        }
    }

    #[test]
    fn differences_have_a_sign_and_a_name() {
        let ours = Usage {
            anon: 150,
            shmem: 10,
            cache: 20,
            ..Usage::default()
        };
        let rows = group(Some(200)).balance(&ours);
        assert_eq!(rows[0].difference(), Some(-50));
        assert!(rows[0].note.contains("several"), "{}", rows[0].note);
        assert_eq!(rows[1].difference(), Some(40));
        assert!(rows[1].note.contains("tmpfs"), "{}", rows[1].note);
        assert_eq!(
            (rows[2].difference(), rows[2].note.as_str()),
            (Some(0), "equal")
        );
    }

    #[test]
    fn the_root_group_has_rows_and_no_remainder() {
        let group = group(None);
        let rows = group.balance(&Usage::default());
        assert!(rows.iter().all(|row| row.name != UNEXPLAINED));
        assert!(group.without_total().unwrap().contains("memory.current"));
    }
}
