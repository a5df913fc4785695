//! Breakdown of a process's address space (`memprof maps`): mappings by category, by name and individually, with the kernel's
//! figures from `/proc/PID/smaps`.
//!
//! Works for any process, profiled or not. It needs no BPF and, for the user's own processes, no privileges.
//!
//! Mappings are processed one at a time, in bounded memory: sums by category, sums for a limited number of names, and the mappings
//! to show.

mod accounts;
mod names;
mod regions;
#[cfg(test)]
mod tests;
mod text;

use std::fs;

use serde::Serialize;

use crate::ids::Pid;
use crate::process;
use crate::residency::category::{Categories, executable};
use crate::residency::smaps::{self, SmapsFigures};
use crate::residency::threads::{self, Threads};
use crate::residency::{Classifier, Result, figures};
use accounts::Accounts;

pub use crate::residency::Category;
pub use regions::MAX_REGIONS;

/// Selects the mappings to show individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// This number of mappings with the largest resident memory, largest first.
    Top(usize),
    /// All mappings by address, at most [`MAX_REGIONS`].
    All,
}

/// Sums over mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Number of mappings.
    pub mappings: u64,
    /// Size of the mappings, in bytes.
    #[serde(rename = "virtual")]
    pub size: u64,
    /// The kernel's figures, in bytes.
    #[serde(flatten)]
    pub figures: SmapsFigures,
}

impl Sums {
    fn add(&mut self, size: u64, figures: SmapsFigures) {
        self.merge(Sums {
            mappings: 1,
            size,
            figures,
        });
    }

    fn merge(&mut self, other: Sums) {
        self.mappings += other.mappings;
        self.size = self.size.saturating_add(other.size);
        self.figures += other.figures;
    }
}

/// A category with its sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CategoryRow {
    /// The category.
    pub category: Category,
    /// Its sums.
    #[serde(flatten)]
    pub sums: Sums,
}

/// A name (a file's path or `[anon:…]`) with its sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NameRow {
    /// The category of the mappings with this name.
    pub category: Category,
    /// The name, truncated to 256 characters.
    pub name: String,
    /// Its sums.
    #[serde(flatten)]
    pub sums: Sums,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegionRow {
    /// First address.
    #[serde(serialize_with = "hex")]
    pub start: u64,
    /// End address, exclusive.
    #[serde(serialize_with = "hex")]
    pub end: u64,
    /// Permissions as `/proc/PID/maps` writes them: `rw-p`.
    pub permissions: String,
    /// Its category.
    pub category: Category,
    /// Its name, truncated to 256 characters; empty if it has none.
    pub name: String,
    /// The kernel's figures, in bytes.
    #[serde(flatten)]
    pub figures: SmapsFigures,
}

fn hex<S: serde::Serializer>(address: &u64, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(&format!("{address:#x}"))
}

fn number<S: serde::Serializer>(pid: &Pid, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_u32(pid.0)
}

/// Number of threads, and of threads whose stack was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StacksTold {
    /// Number of threads other than the first.
    pub threads: usize,
    /// Number of these threads whose stack was found.
    pub found: usize,
}

/// Result of comparing the sums with `smaps_rollup`, read before and after `smaps`. Only figures that depend on the process alone
/// are compared (`Rss`, `Anonymous`, `AnonHugePages`, `Swap`, hugetlb): the others also depend on the pages that other processes
/// share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verdict", content = "differing")]
pub enum Verdict {
    /// Every figure equals both readings.
    Equal,
    /// The two readings differ because the process changes, and every sum is between them.
    Between,
    /// These figures are outside the two readings.
    Differs(Vec<&'static str>),
    /// The kernel has no `smaps_rollup` (before Linux 4.14).
    Unknown,
}

/// The breakdown of an address space.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// The process.
    #[serde(serialize_with = "number")]
    pub pid: Pid,
    /// The process's name (`comm`).
    pub comm: String,
    /// The name under which the process runs its executable, if it says more than the kernel's name of the file.
    pub runs_as: Option<String>,
    /// How many threads' stacks were found.
    pub stacks: StacksTold,
    /// Page tables, in bytes: `VmPTE` of `/proc/PID/status`. Kernel memory, not in any category or total.
    pub page_tables: u64,
    /// Every category that has a mapping.
    pub categories: Vec<CategoryRow>,
    /// Sums of all mappings.
    pub total: Sums,
    /// `smaps_rollup` just before the mappings were read.
    pub rollup_before: Option<SmapsFigures>,
    /// `smaps_rollup` just after the mappings were read.
    pub rollup_after: Option<SmapsFigures>,
    /// Result of comparing `total` with both readings.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Figures of `total` outside the two readings that also depend on other processes (`Pss`, `Private_…`, `Shared_…`). A figure
    /// that the kernel rounds per mapping is included only if it differs by more than the rounding.
    pub sharing_differs: Vec<&'static str>,
    /// Names by resident memory, largest first.
    pub names: Vec<NameRow>,
    /// Number of names that are not listed. Once the table of names is full, each mapping with a further name counts.
    pub names_left_out: u64,
    /// The mappings to show.
    pub regions: Vec<RegionRow>,
    /// Number of mappings that are not shown.
    pub regions_left_out: u64,
}

/// Measures the address space of a process.
///
/// # Errors
/// The errors of `smaps::read`, including [`Gone`](crate::residency::Error::Gone) for a process that ended meanwhile.
pub fn measure(pid: Pid, show: Show) -> Result<Breakdown> {
    let before = rollup(pid)?;
    let threads = threads::read(pid);
    let categories = Categories::new(pid, &threads, executable(pid));
    let mut accounts = Accounts::new(categories, show);
    smaps::read(pid, &mut Classifier::new(), &mut |region| {
        accounts.add(region);
    })?;
    let after = rollup(pid)?;
    let mut breakdown = finish(pid, accounts, &threads, (before, after), show);
    breakdown.runs_as = crate::run_name::runs_as(pid);
    breakdown.page_tables = figures::status(pid)?.page_tables;
    Ok(breakdown)
}

/// The kernel's total; `None` if the process exists but the kernel has no `smaps_rollup`.
fn rollup(pid: Pid) -> Result<Option<SmapsFigures>> {
    match figures::rollup(pid) {
        Ok(figures) => Ok(Some(figures)),
        Err(e) if e.is_gone() && !has_rollup() => Ok(None),
        Err(e) => Err(e),
    }
}

fn has_rollup() -> bool {
    fs::exists("/proc/self/smaps_rollup").unwrap_or(true)
}

fn finish(
    pid: Pid,
    accounts: Accounts<'_>,
    threads: &Threads,
    (rollup_before, rollup_after): (Option<SmapsFigures>, Option<SmapsFigures>),
    show: Show,
) -> Breakdown {
    let totals = accounts.close();
    let names_shown = match show {
        Show::Top(n) => n,
        Show::All => usize::MAX,
    };
    let mut names = totals.names;
    let unlisted = names.len().saturating_sub(names_shown);
    names.truncate(names_shown);
    let mut total = Sums::default();
    totals.categories.values().for_each(|s| total.merge(*s));
    let (verdict, sharing_differs) = compare(&total, rollup_before, rollup_after);
    Breakdown {
        pid,
        comm: process::comm(pid).unwrap_or_default(),
        runs_as: None,
        stacks: StacksTold {
            threads: threads.count,
            found: totals.stacks_found,
        },
        page_tables: 0,
        categories: totals
            .categories
            .into_iter()
            .map(|(category, sums)| CategoryRow { category, sums })
            .collect(),
        total,
        rollup_before,
        rollup_after,
        verdict,
        sharing_differs,
        names,
        names_left_out: totals.names_refused + unlisted as u64,
        regions_left_out: total.mappings - totals.regions.len() as u64,
        regions: totals.regions,
    }
}

/// The figures that depend on the process alone, with the kernel's names.
fn own(f: &SmapsFigures) -> [(&'static str, u64); 5] {
    [
        ("Rss", f.rss),
        ("Anonymous", f.anonymous),
        ("AnonHugePages", f.anon_huge),
        ("Swap", f.swap),
        ("Hugetlb", f.hugetlb),
    ]
}

/// The figures that depend on the pages that other processes share.
fn sharing(f: &SmapsFigures) -> [(&'static str, u64); 4] {
    [
        ("Private_Clean", f.private_clean),
        ("Private_Dirty", f.private_dirty),
        ("Shared_Clean", f.shared_clean),
        ("Shared_Dirty", f.shared_dirty),
    ]
}

/// The figures that depend on other processes and that the kernel rounds down to KiB for each mapping.
fn rounded(f: &SmapsFigures) -> [(&'static str, u64); 2] {
    [("Pss", f.pss), ("SwapPss", f.swap_pss)]
}

/// The names of the figures that are above both readings, or more than `slack` bytes below both.
fn outside<const N: usize>(
    of: fn(&SmapsFigures) -> [(&'static str, u64); N],
    ours: &SmapsFigures,
    readings: (&SmapsFigures, &SmapsFigures),
    slack: u64,
) -> Vec<&'static str> {
    let kernel = of(readings.0).into_iter().zip(of(readings.1));
    let all = of(ours).into_iter().zip(kernel);
    all.filter(|((_, ours), ((_, a), (_, b)))| {
        ours > a.max(b) || ours.saturating_add(slack) < *a.min(b)
    })
    .map(|((name, _), _)| name)
    .collect()
}

/// Compares the sums with the kernel's totals. Also returns the differing figures that depend on other processes.
fn compare(
    total: &Sums,
    before: Option<SmapsFigures>,
    after: Option<SmapsFigures>,
) -> (Verdict, Vec<&'static str>) {
    let (Some(before), Some(after)) = (before, after) else {
        return (Verdict::Unknown, Vec::new());
    };
    let (ours, readings) = (&total.figures, (&before, &after));
    let slack = total.mappings.saturating_sub(1) * 1024;
    let mut others = outside(sharing, ours, readings, 0);
    others.extend(outside(rounded, ours, readings, slack));
    let differing = outside(own, ours, readings, 0);
    let verdict = match differing.is_empty() {
        false => Verdict::Differs(differing),
        true if own(&before) == own(&after) => Verdict::Equal,
        true => Verdict::Between,
    };
    (verdict, others)
}
