//! The cards of the overview: a sentence, and the rows that prove it.

use std::collections::HashMap;
use std::time::Duration;

use super::functions::own_functions_by;
use super::{FunctionRow, Grows, MadeOf, OwnFunction, Part, PeakCard, ROWS, own_functions};
use crate::export::growth::{GrowthRow, GrowthTable};
use memprof_profile::measure::INUSE_SPACE;
use memprof_profile::{Kind, Margin, Peak, Profile, Report};
use memprof_sys::residency::Category;
use memprof_sys::text::{duration, size};

/// Share of the peak from which on the present is called the peak.
const AT_PEAK: f64 = 0.98;

impl MadeOf {
    pub(super) fn new(profile: &Profile) -> MadeOf {
        let usage = &profile.total.usage;
        let rss = usage.resident() + usage.file;
        let kinds = [
            (usage.anon, "anonymous"),
            (usage.shmem, "shared"),
            (usage.file, "of mapped files"),
        ];
        let kinds = kinds.iter().filter(|(bytes, _)| *bytes > 0);
        let kinds: Vec<String> = kinds
            .map(|(bytes, name)| format!("{} {name}", size(*bytes)))
            .collect();
        let sentence = match kinds.is_empty() {
            true => "No memory is resident.".to_owned(),
            false => format!("RSS {} = {}", size(rss), kinds.join(" + ")),
        };
        let beside = [
            ("swapped out", usage.swap),
            ("huge pages (hugetlbfs)", usage.hugetlb),
            ("page cache that its IO brought in", usage.cache),
            ("page tables", profile.kernel_after.page_tables),
        ];
        MadeOf {
            sentence,
            rss,
            parts: parts(profile, rss),
            beside: nonzero(&beside),
        }
    }
}

fn nonzero(parts: &[(&'static str, u64)]) -> Vec<Part> {
    let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
    parts
        .map(|(name, bytes)| Part {
            name,
            bytes: *bytes,
        })
        .collect()
}

/// Resident memory by what its mappings are for. Pages that several processes share count once in `rss`, but in the mapping of each
/// process: then the parts are kinds of memory, whose sum is `rss`.
fn parts(profile: &Profile, rss: u64) -> Vec<Part> {
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for mapping in &profile.places.mappings {
        let (bytes, name) = (&mapping.bytes, part_name(mapping.category));
        let resident = |usage: &memprof_sys::usage::Usage| usage.resident() + usage.file;
        let resident = resident(&bytes.attributed) + resident(&bytes.not_observed);
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += resident,
            None => sums.push((name, resident)),
        }
    }
    let all: u64 = sums.iter().map(|(_, bytes)| bytes).sum();
    if all != rss {
        let usage = &profile.total.usage;
        sums = vec![
            ("anonymous memory", usage.anon),
            ("shared memory", usage.shmem),
            ("mapped files", usage.file),
        ];
    }
    sums.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    nonzero(&sums)
}

fn part_name(category: Category) -> &'static str {
    match category {
        Category::Heap => "heap (brk)",
        Category::Arena => "heap (arenas of threads)",
        Category::MainStack | Category::ThreadStack | Category::StackGuard => "stacks",
        Category::NamedAnon => "named anonymous memory",
        Category::Anon { exec: true, .. } => "code made at run time",
        Category::Anon { .. } => "anonymous mappings",
        Category::OwnBinary => "the program's own file",
        Category::Library => "libraries",
        Category::OtherFile => "other files",
        Category::SharedAnon
        | Category::NamedShared
        | Category::Memfd
        | Category::SysV
        | Category::Tmpfs => "shared memory",
        Category::Hugetlb | Category::Device | Category::Kernel => {
            "devices and the kernel's mappings"
        }
    }
}

impl FunctionRow {
    fn new(function: &OwnFunction<'_>, growth: Option<&GrowthRow>) -> FunctionRow {
        let code = &function.code;
        let certain = growth.filter(|row| row.shape.is_some());
        FunctionRow {
            function: code.function.map(str::to_owned),
            place: function.place(),
            path: code.path.to_string_lossy().into_owned(),
            bytes: function.bytes,
            per_hour: growth
                .filter(|row| row.steady_rate().is_some())
                .map(|row| row.per_hour.round() as i64),
            values: certain.map(|row| row.values.clone()).unwrap_or_default(),
            own: code.category.0.is_own(),
        }
    }
}

/// The program's own functions, or all if there are none.
pub(super) fn of_program(functions: Vec<OwnFunction<'_>>) -> Vec<OwnFunction<'_>> {
    let has_own = functions.iter().any(|f| f.code.category.0.is_own());
    let wanted = |f: &OwnFunction<'_>| !has_own || f.code.category.0.is_own();
    functions.into_iter().filter(wanted).collect()
}

/// The largest ones, as part of a sentence; estimates have their margins.
fn largest(functions: &[OwnFunction<'_>]) -> String {
    let largest = functions.iter().take(2).map(|function| {
        let margin = Margin::from_standard_error(function.bytes, function.error);
        let bytes = margin.beside(function.bytes, size, size);
        format!("{} {bytes}", function.text())
    });
    largest.collect::<Vec<_>>().join(", ")
}

impl Grows {
    pub(super) fn new(
        profile: &Profile,
        functions: &[OwnFunction<'_>],
        growth: Option<&GrowthTable>,
    ) -> Grows {
        let table = growth.filter(|table| table.total.is_some());
        let grown: HashMap<&str, &GrowthRow> = table
            .iter()
            .flat_map(|table| table.rows.iter().map(|row| (&*row.name, row)))
            .collect();
        let known = |f: &OwnFunction<'_>| grown.get(&*f.key()).copied();
        let (mut first, rest): (Vec<_>, Vec<_>) = functions
            .iter()
            .map(|function| (function, known(function)))
            .partition(|(_, growth)| growth.is_some_and(|row| row.steady_rate().is_some()));
        first.sort_by(|a, b| {
            let rate = |row: &Option<&GrowthRow>| row.map_or(0.0, |row| row.per_hour);
            rate(&b.1).total_cmp(&rate(&a.1))
        });
        let sentence = match table {
            Some(table) => trend(table, first.first()),
            None => held(profile, functions),
        };
        let rows = first.iter().chain(&rest).take(ROWS);
        Grows {
            sentence,
            rows: rows
                .map(|(f, growth)| FunctionRow::new(f, *growth))
                .collect(),
        }
    }
}

/// Which functions have most of the live heap, where allocations were sampled. A page counts for the code that touched it first;
/// the allocator may have given it to other code since.
pub(super) fn live_heap(report: &Report) -> Option<String> {
    let functions = own_functions_by(report, Kind::Column(INUSE_SPACE));
    let largest = largest(&of_program(functions));
    (!largest.is_empty()).then(|| format!("Live heap: {largest}."))
}

/// The sentence while nothing is known of the past.
fn held(profile: &Profile, functions: &[OwnFunction<'_>]) -> String {
    let seen = profile.attributed().usage.resident();
    let total = profile.total.usage.resident();
    let when = duration(profile.observed);
    let largest = largest(functions);
    match (seen, largest.is_empty()) {
        (0, _) => format!("memprof has seen no memory arrive in {when}."),
        (_, true) => format!(
            "memprof has seen {} of {} arrive in {when}.",
            size(seen),
            size(total)
        ),
        _ => format!(
            "memprof has seen {} of {} arrive in {when}: {largest}.",
            size(seen),
            size(total)
        ),
    }
}

fn trend(table: &GrowthTable, first: Option<&(&OwnFunction<'_>, Option<&GrowthRow>)>) -> String {
    let ms = table
        .to
        .unwrap_or(0)
        .saturating_sub(table.from.unwrap_or(0));
    let span = duration(Duration::from_millis(ms));
    let Some(total) = table
        .total
        .as_ref()
        .filter(|total| total.steady_rate().is_some())
    else {
        let all = table.total.as_ref().and_then(stopped);
        let function = first.and_then(|(function, row)| {
            let rate = size(row.as_ref()?.per_hour.max(0.0) as u64);
            Some((function.text(), rate))
        });
        return match (function, all) {
            (Some((name, rate)), Some(all)) => {
                format!("In the last {span}, {all}; {name} still grows by {rate} an hour.")
            }
            (Some((name, rate)), None) => format!(
                "{name} grows by {rate} an hour; all memory together does not certainly grow (looked at: the last {span})."
            ),
            (None, Some(all)) => format!("In the last {span}, {all}."),
            (None, None) => format!("Nothing certainly grows (looked at: the last {span})."),
        };
    };
    let since = Duration::from_millis(table.to.unwrap_or(0).saturating_sub(total.since));
    let rate = size(total.per_hour.max(0.0) as u64);
    let by = match first {
        Some((
            function,
            Some(GrowthRow {
                share: Some(share), ..
            }),
        )) => format!(
            ": {} has {:.0} % of it",
            function.text(),
            (share * 100.0).clamp(0.0, 100.0)
        ),
        _ => String::new(),
    };
    format!("+{rate} an hour, steady for {}{by}.", duration(since))
}

/// The statement that memory grew and has stopped growing; `None` if it did not grow.
fn stopped(total: &GrowthRow) -> Option<String> {
    total.shape?;
    let (first, last) = (total.values.first()?, total.values.last()?);
    (last > first).then(|| {
        format!(
            "memory grew from {} to {} and has stopped growing",
            size(*first),
            size(*last)
        )
    })
}

impl PeakCard {
    pub(super) fn new(report: &Report, at_peak: Option<&Report>) -> Option<PeakCard> {
        let peak: Peak = at_peak
            .and_then(|r| r.profile.peak)
            .or(report.profile.peak)?;
        let usage = &report.profile.total.usage;
        let now = usage.resident() + usage.file;
        let is_peak = now as f64 >= AT_PEAK * peak.highest() as f64;
        let is_now = report.profile.target.alive && is_peak;
        // The report of a process that has ended may itself be that of the peak.
        let at_peak = at_peak.or((is_peak && !is_now).then_some(report));
        let functions = at_peak.map(own_functions).unwrap_or_default();
        let functions = of_program(functions);
        let largest = match largest(&functions) {
            text if text.is_empty() => text,
            text => format!(": {text}"),
        };
        let when = match is_now {
            true if now >= peak.highest() => "now".to_owned(),
            true => format!(
                "{} after memprof began, and nearly that now",
                duration(peak.after())
            ),
            false => format!("{} after memprof began", duration(peak.after())),
        };
        let rows = functions.iter().take(ROWS);
        Some(PeakCard {
            sentence: format!("{} at the peak, {when}{largest}.", size(peak.highest())),
            rows: rows.map(|f| FunctionRow::new(f, None)).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
