//! Whether a snapshot contains all of a process's private memory: what it lacks, and how it compares with the
//! kernel's figures. Chunks are reported as unreachable only if no memory is missing that might refer to them.

use schemars::JsonSchema;
use serde::Serialize;

/// Tolerated difference between a snapshot and the kernel's figure: 1/`TOLERANCE` of the figure.
const TOLERANCE: u64 = 1000;

/// The anonymous memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anonymous {
    /// Resident bytes.
    pub resident: u64,
    /// Swapped-out bytes.
    pub swapped: u64,
}

impl Anonymous {
    /// The sum, which swapping in or out does not change.
    pub(super) fn all(&self) -> u64 {
        self.resident + self.swapped
    }
}

impl From<[u64; 2]> for Anonymous {
    fn from([resident, swapped]: [u64; 2]) -> Anonymous {
        Anonymous { resident, swapped }
    }
}

/// The kernel's figures for a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelSums {
    /// `Anonymous` of `smaps`, and `VmSwap`, before the stop.
    pub before: Anonymous,
    /// `RssAnon` and `VmSwap` while the process was stopped; `None` where the kernel's counters are not exact.
    pub at_stop: Option<Anonymous>,
    /// `Anonymous` of `smaps`, and `VmSwap`, after the stop.
    pub after: Anonymous,
}

/// Why private memory is not in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapMissingKind")]
pub enum MissingKind {
    /// A forked child does not have it: `MADV_DONTFORK`.
    NotForked,
    /// A forked child has zeroes instead: `MADV_WIPEONFORK`.
    Wiped,
    /// The kernel did not let memprof read it, for example device memory.
    Unread,
    /// A core does not contain it.
    NotInCore,
    /// A core is cut off before it.
    CutOff,
    /// The registers of threads, which a core does not contain.
    Registers,
}

/// Private memory that is not in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapMissing")]
pub struct Missing {
    /// The reason.
    pub kind: MissingKind,
    /// Bytes, as far as known.
    pub bytes: u64,
}

/// Comparison of a snapshot's anonymous memory with the kernel's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapAgreement")]
pub enum Agreement {
    /// Equal to the kernel's figures before and after.
    #[default]
    Equal,
    /// Between the kernel's figures before and after.
    Between,
    /// The kernel's figures show that the process changed meanwhile.
    Changed,
    /// Different from the kernel's figures, and no sign that the process changed.
    Differs,
    /// A core contains no figures of the kernel.
    NotCompared,
}

/// Why a snapshot must be taken again.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Disturbed {
    /// The child was killed.
    #[error(
        "its copy-on-write child was killed, by the kernel because memory had run out (it is to go first), or by somebody \
         with the right to"
    )]
    ChildKilled,
    /// A read of the child timed out.
    #[error(
        "its copy-on-write child could not be read in time: the machine is busy, or the child was ending"
    )]
    ChildHeld,
    /// The process called `execve`.
    #[error("it executed another program meanwhile")]
    OtherProgram,
}

impl KernelSums {
    /// Compares the figures with the anonymous memory found in a snapshot.
    pub(super) fn agree(&self, found: Anonymous) -> Agreement {
        let (before, after) = (self.before.resident, self.after.resident);
        let (low, high) = (before.min(after), before.max(after));
        if self.at_stop.is_some() && self.off_from(found).is_some() {
            Agreement::Differs
        } else if low == high && found.resident == low {
            Agreement::Equal
        } else if low != high && (low..=high).contains(&found.resident) {
            Agreement::Between
        } else if low != high || self.at_stop.is_some_and(|at| at.resident != low) {
            Agreement::Changed
        } else {
            Agreement::Differs
        }
    }

    /// Returns the kernel's figure, in bytes, if the snapshot differs from it by more than the tolerance. Uses the
    /// figure at the stop or, without one, the nearest value between the figures before and after.
    fn off_from(&self, found: Anonymous) -> Option<u64> {
        let (before, after) = (self.before.all(), self.after.all());
        let between = || found.all().clamp(before.min(after), before.max(after));
        let nearest = self.at_stop.as_ref().map_or_else(between, Anonymous::all);
        (found.all().abs_diff(nearest) > nearest / TOLERANCE).then_some(nearest)
    }

    /// Why no chunk of the snapshot can be reported as unreachable; `None` if chunks can.
    pub(super) fn doubt(&self, found: Anonymous, missing: &[Missing]) -> Option<String> {
        if missing.is_empty() {
            let (found, kernel) = (found.all() / 1024, self.off_from(found)? / 1024);
            return Some(format!(
                "the snapshot has {found} KiB of anonymous memory, and the kernel says {kernel} KiB"
            ));
        }
        let list: Vec<String> = missing.iter().map(Missing::to_string).collect();
        Some(format!("the snapshot lacks {}", list.join(", and ")))
    }
}

impl MissingKind {
    /// The memory, in words.
    pub(super) fn name(self) -> &'static str {
        match self {
            MissingKind::NotForked => "memory that a forked child does not have (MADV_DONTFORK)",
            MissingKind::Wiped => "memory that is empty in a forked child (MADV_WIPEONFORK)",
            MissingKind::Unread => "memory that the kernel did not let memprof read",
            MissingKind::NotInCore => {
                "memory that the core does not contain (never written to, or kept out by MADV_DONTDUMP or coredump_filter)"
            }
            MissingKind::CutOff => "memory behind the end of the core, which is cut off",
            MissingKind::Registers => "the registers of threads",
        }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = self.kind.name();
        match self.bytes {
            0 => write!(f, "{what}"),
            bytes => write!(f, "{:.1} KiB of {what}", bytes as f64 / 1024.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn resident(resident: u64) -> Anonymous {
        Anonymous {
            resident,
            swapped: 0,
        }
    }

    fn sums(before: u64, at_stop: Option<u64>, after: u64) -> KernelSums {
        KernelSums {
            before: resident(before),
            at_stop: at_stop.map(resident),
            after: resident(after),
        }
    }

    #[test]
    fn a_change_is_named_only_where_the_kernel_s_figures_show_one() {
        let agree = |before, at, after, sum| sums(before, at, after).agree(resident(sum));
        assert_eq!(agree(8, Some(8), 8, 8), Agreement::Equal);
        assert_eq!(agree(8, None, 8, 8), Agreement::Equal);
        assert_eq!(agree(8 * MIB, None, 8 * MIB, MIB), Agreement::Differs);
        assert_eq!(
            agree(8 * MIB, Some(8 * MIB), 8 * MIB, MIB),
            Agreement::Differs
        );
        assert_eq!(agree(7 * MIB, None, 9 * MIB, 8 * MIB), Agreement::Between);
        assert_eq!(
            agree(7 * MIB, Some(9 * MIB), 9 * MIB, 8 * MIB),
            Agreement::Differs
        );
        assert_eq!(agree(7 * MIB, None, 8 * MIB, 9 * MIB), Agreement::Changed);
        assert_eq!(
            agree(8 * MIB, Some(9 * MIB), 8 * MIB, 9 * MIB),
            Agreement::Changed
        );
    }

    #[test]
    fn whoever_lacks_memory_calls_nothing_unreachable() {
        let whole = sums(8 * MIB, Some(8 * MIB), 8 * MIB);
        assert_eq!(whole.doubt(resident(8 * MIB), &[]), None);
        assert_eq!(whole.doubt(resident(8 * MIB - 8192), &[]), None);
        let why = whole.doubt(resident(8 * MIB - 12288), &[]).unwrap();
        assert!(
            why.contains("8180 KiB") && why.contains("8192 KiB"),
            "{why}"
        );
        let missing = |kind, bytes| Missing { kind, bytes };
        let some = [
            missing(MissingKind::NotForked, 2048),
            missing(MissingKind::Unread, 0),
        ];
        let why = whole.doubt(resident(8 * MIB), &some).unwrap();
        assert!(why.contains("2.0 KiB of memory that a forked child does not have"));
        assert!(why.ends_with("let memprof read"), "{why}");
        // Without the figure at the stop, any value between the other two is right.
        let doubt = |before, after, found| sums(before, None, after).doubt(resident(found), &[]);
        assert_eq!(doubt(7 * MIB, 9 * MIB, 8 * MIB), None);
        assert!(doubt(7 * MIB, 8 * MIB, 9 * MIB).is_some());
        // Memory that was swapped in meanwhile is not missing.
        let swapped = Anonymous {
            resident: 7 * MIB,
            swapped: MIB,
        };
        assert_eq!(whole.doubt(swapped, &[]), None);
    }
}
