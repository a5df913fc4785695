//! Parts shared by several `/v2` replies.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU64;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value};

use super::ApiError;
use super::query::bad;
use memprof_profile::measure::{MEASURES, Measure};
pub(super) use memprof_profile::saved::unix_ms as millis;
use memprof_profile::{
    self as profile, Amounts, Faults, FreezeOutcome, Kind, Outcome, Peak, Profile, Report, Verdict,
};
use memprof_sys::kernel_figures::KernelFigures;

/// Figures by kind, in the order of [`Kind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(pub(super) Amounts);

impl Serialize for Kinds {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let stated = Kind::ALL.into_iter().filter(|kind| kind.stated(&self.0));
        to.collect_map(stated.map(|kind| (kind.name(), kind.figure(&self.0))))
    }
}

impl JsonSchema for Kinds {
    fn schema_name() -> Cow<'static, str> {
        "Usage".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for kind in Kind::ALL {
            let mut figure = generator.subschema_for::<u64>();
            figure.insert("description".to_owned(), about(kind).into());
            properties.insert(kind.name().to_owned(), figure.into());
        }
        let always = Kind::ALL
            .into_iter()
            .filter(|kind| kind.measure().always_stated);
        json_schema!({
            "type": "object",
            "description": "Bytes by kind of memory, and numbers of allocations. The kinds of the heap are estimates from \
                samples, or exact (report.heap_exact).",
            "properties": properties,
            "required": always.map(Kind::name).collect::<Vec<_>>(),
        })
    }
}

/// The description of a kind in the OpenAPI document.
fn about(kind: Kind) -> String {
    let text = match kind {
        Kind::All => "anon + shmem + cache",
        Kind::Resident => "anon + shmem, which are the kernel's RssAnon + RssShmem",
        Kind::Anon => "Resident anonymous memory",
        Kind::Shmem => "Resident shared memory (shmem, tmpfs, memfd) mapped by the target",
        Kind::Cache => "Page cache that the target's own I/O brought in and that is still cached",
        Kind::File => "Resident file mappings; the same physical pages may also be in cache",
        Kind::Swap => "Swapped out, not resident",
        Kind::Hugetlb => "hugetlb pages, which the kernel does not count in RSS",
        Kind::Column(id) => id.column().metric.1,
    };
    let measure = kind.measure();
    match (measure.option, measure.always_stated) {
        (None, _) => text.to_owned(),
        (Some(option), true) => format!("{text}. 0 without {option}"),
        (Some(option), false) => format!("{text}. Absent without {option}, and if it is 0"),
    }
}

/// Nonzero standard errors by kind, in the kind's unit.
#[derive(Debug)]
struct Errors(Vec<(Kind, u64)>);

impl Errors {
    fn from_profile(profile: &Profile) -> Errors {
        let errors = profile.columns();
        let errors = errors.map(|(kind, _)| (kind, profile.total_error(kind)));
        Errors(errors.filter(|(_, error)| *error > 0).collect())
    }
}

impl Serialize for Errors {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(kind, error)| (kind.name(), error)))
    }
}

/// Whether each optional measure was counted, as fields `NAME_counted`.
#[derive(Debug)]
struct Counted(Vec<(&'static Measure, bool)>);

impl Serialize for Counted {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let field =
            |(measure, counted): &(&Measure, bool)| (format!("{}_counted", measure.name), *counted);
        to.collect_map(self.0.iter().map(field))
    }
}

impl JsonSchema for Counted {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Counted".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let optional = MEASURES.into_iter().filter_map(|measure| {
            let about = format!("Whether {} is counted ({})", measure.title, measure.option?);
            let field = json_schema!({"type": "boolean", "description": about});
            Some((format!("{}_counted", measure.name), field.into()))
        });
        let properties: Map<String, Value> = optional.collect();
        let required: Vec<&String> = properties.keys().collect();
        json_schema!({"type": "object", "required": required, "properties": properties})
    }
}

/// Control group, container and pod of a process: the form of `Container` in replies.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ContainerLabels {
    /// Name of the control group: of version 2, or of version 1's memory controller if version 2 has only the root.
    /// Present only if several processes are followed.
    #[schemars(with = "String", skip_serializing_if = "Option::is_none")]
    cgroup: Option<String>,
    /// Id of the container, if the name of a control group contains one.
    #[schemars(with = "String", skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    /// UID of the Kubernetes pod, if the name of a control group contains one.
    #[schemars(with = "String", skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
}

/// Checks that figures of this kind are counted.
///
/// # Errors
/// [`ApiError::BadRequest`] with the remedy if they are not.
pub(super) fn counted(kind: Kind, profile: &Profile) -> Result<(), ApiError> {
    let measure = kind.measure();
    match measure.option {
        Some(option) if !profile.counts(kind) => Err(bad(format!(
            "{} is not counted: start memprof with {option}",
            measure.title
        ))),
        _ => Ok(()),
    }
}

/// The duration for which the target was frozen, in microseconds.
pub(super) fn stopped_us(freeze: &FreezeOutcome) -> Option<u64> {
    let micros = freeze.lasted()?.as_micros();
    Some(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// A kind of loss and the number of its occurrences.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Loss {
    /// The events that were lost, or are not counted.
    what: String,
    /// Number of occurrences.
    count: u64,
}

/// Counters of losses, or of what is not counted, as rows.
pub(super) fn losses<'a>(
    counters: impl Iterator<Item = &'a (Cow<'static, str>, u64)>,
) -> Vec<Loss> {
    let loss = |(what, count): &(Cow<'_, str>, u64)| Loss {
        what: what.to_string(),
        count: *count,
    };
    counters.map(loss).collect()
}

/// Stacks whose unwinding had the same outcome.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Outcome")]
pub(super) struct OutcomeRow {
    /// Outcome of unwinding the stack.
    outcome: &'static str,
    /// Whether unwinding reached the outermost frame.
    complete: bool,
    /// Number of distinct stacks.
    stacks: u64,
    /// Bytes (kind all) under these stacks.
    bytes: u64,
}

pub(super) fn outcomes(profile: &Profile) -> Vec<OutcomeRow> {
    let row = |(outcome, stacks, bytes): (Outcome, u64, u64)| OutcomeRow {
        outcome: outcome.label(),
        complete: outcome.is_complete(),
        stacks,
        bytes,
    };
    profile.outcomes().into_iter().map(row).collect()
}

/// Comparison of total.resident with the kernel's figures. Amounts are in bytes.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Agreement {
    /// equal: the sum over all stacks and memory without a stack equals the kernel's figure to the byte. between: the
    /// target was running, and the sum lies between the two figures. below, above: the sum lies outside of them.
    /// incomplete: processes of the target are missing from all three, because a table was full or memprof lags behind;
    /// losses says which.
    #[schemars(extend("enum" = ["equal", "between", "below", "above", "incomplete"]))]
    verdict: &'static str,
    /// Resident total of this report.
    resident: u64,
    /// The smaller of the kernel's two figures (RssAnon + RssShmem) before and after the scan.
    low: u64,
    /// The larger of the two figures.
    high: u64,
}

impl From<profile::Agreement> for Agreement {
    fn from(a: profile::Agreement) -> Agreement {
        let verdict = match a.verdict() {
            Verdict::Equal => "equal",
            Verdict::Between => "between",
            Verdict::Below => "below",
            Verdict::Above => "above",
            Verdict::Incomplete => "incomplete",
        };
        Agreement {
            verdict,
            resident: a.ours,
            low: a.low,
            high: a.high,
        }
    }
}

/// The state that a reply shows, its totals, and its gaps.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Report")]
pub(super) struct ReportInfo {
    /// Number of the report; replies with the same number show the same state.
    number: u64,
    /// End of the page scan, in milliseconds since 1970-01-01 UTC.
    taken: u64,
    /// Process id of the target.
    pid: u32,
    /// false: the target has ended, and this is its last report.
    alive: bool,
    /// How long the target was frozen for this report, in microseconds; null if it was running. If processes were
    /// frozen one after the other, the longest time. Never longer than --max-freeze.
    stopped_us: Option<u64>,
    /// Whether the processes were frozen one after the other, each for its own scan. With pid=PID each process is
    /// exact, but the sums do not show a single moment.
    stopped_in_turn: bool,
    /// Why the target was not frozen despite --freeze: what was attempted, how far the scan came or how long it would
    /// take, and what to do.
    freeze_error: Option<String>,
    /// Whether this is the exact state at one moment: all processes were frozen together, the kernel's figures are the
    /// same before and after, and the kernel's page-table walk (smaps_rollup) finds the same anonymous memory, or its
    /// counter (RssAnon) if there was no time for the walk.
    exact: bool,
    #[serde(flatten)]
    counted: Counted,
    /// Whether the kinds of the heap are exact: every call was counted in a window (--heap=exact). Otherwise they are
    /// estimates: from sampled allocations, or from one call in N (--every).
    heap_exact: bool,
    /// Whether single sampled allocations are known, among which filter= and /v2/allocations choose. With --heap=exact
    /// there are none.
    heap_single: bool,
    /// Whether there are functions of an interpreted program (Python, Ruby).
    has_source: bool,
    /// Page faults of the followed processes since memprof attached, and those whose stack was not walked (--stacks).
    /// If there are any, bytes by stack are estimates; the sums stay exact. null: page faults are not hooked (--stacks
    /// off), and memory has the stack of the call that mapped it.
    faults: Option<Faults>,
    /// All memory; with pid=PID, of this process.
    total: Kinds,
    /// Standard errors of those totals that are estimates (--heap), by kind, in the kind's unit. In 95 % of all cases
    /// the true figure is within 1.96 standard errors. Empty if all totals are exact.
    #[schemars(with = "BTreeMap<String, NonZeroU64>")]
    total_error: Errors,
    /// Kernel memory for the target's page tables (VmPTE), in bytes; part of no total.
    page_tables: u64,
    /// Comparison of total.resident with the kernel's figures.
    agreement: Agreement,
    /// Memory without a stack.
    not_observed: Kinds,
    /// Memory under stacks whose unwinding ended before the outermost frame.
    incomplete: Kinds,
    /// Events missed, lost or truncated since memprof attached; normally empty.
    losses: Vec<Loss>,
    /// Observations that memprof leaves out of all figures on purpose; nothing is missing.
    not_counted: Vec<Loss>,
}

impl From<&Report> for ReportInfo {
    fn from(report: &Report) -> ReportInfo {
        let profile = &report.profile;
        ReportInfo {
            number: report.sequence,
            taken: millis(profile.taken),
            pid: profile.target.pid.0,
            alive: profile.target.alive,
            stopped_us: stopped_us(&profile.freeze),
            stopped_in_turn: profile.freeze.in_turn(),
            freeze_error: profile.freeze.failed().map(str::to_owned),
            exact: profile.is_exact(),
            counted: Counted(profile.optional_measures().collect()),
            heap_exact: profile.is_heap_exact(),
            heap_single: profile.has_single_allocations(),
            has_source: profile.has_source(),
            faults: profile.faults,
            total: Kinds(profile.total),
            total_error: Errors::from_profile(profile),
            page_tables: profile.kernel_after.page_tables,
            agreement: profile.agreement().into(),
            not_observed: Kinds(profile.unattributed()),
            incomplete: Kinds(profile.incomplete()),
            losses: losses(profile.losses.lost()),
            not_counted: losses(profile.losses.not_counted()),
        }
    }
}

/// The kernel's own figures in bytes, summed over the followed processes.
#[derive(Debug, JsonSchema, Serialize)]
struct Kernel {
    /// Anonymous from smaps_rollup. Absent for a running target with more than 256 MiB resident in one mapping, because
    /// reading it would stall the target. If the target is frozen, it is read once for both before and after, if
    /// --max-freeze leaves enough time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    anonymous: Option<u64>,
    /// RssAnon from status (approximate up to Linux 6.15). For a command that has ended, this field and its siblings
    /// are sums over smaps.
    rss_anon: u64,
    /// RssShmem from status.
    rss_shmem: u64,
    /// RssFile from status.
    rss_file: u64,
    /// VmSwap from status.
    swap: u64,
    /// VmPTE from status: page tables, which are kernel memory and not part of RSS.
    page_tables: u64,
}

impl From<&KernelFigures> for Kernel {
    fn from(k: &KernelFigures) -> Kernel {
        Kernel {
            anonymous: k.anonymous,
            rss_anon: k.rss_anon,
            rss_shmem: k.rss_shmem,
            rss_file: k.rss_file,
            swap: k.swap,
            page_tables: k.page_tables,
        }
    }
}

/// The highest resident memory (anon, shmem, file), of a process or of all together.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct HighestMemory {
    /// The most of which memprof knows the profile, in bytes. That profile is the mark peak; with pid, that of the process, if it is
    /// kept.
    rss: u64,
    /// The kernel's own figure in bytes: VmHWM; of several processes, the highest sum of their RSS that memprof saw. Null if it is
    /// unknown.
    high_water: Option<u64>,
    /// Number of processes at that moment.
    processes: u32,
    /// Time from the start of following the target to that moment, in milliseconds.
    after_ms: u64,
}

impl From<Peak> for HighestMemory {
    fn from(peak: Peak) -> HighestMemory {
        HighestMemory {
            rss: peak.rss,
            high_water: peak.high_water,
            processes: peak.processes,
            after_ms: peak.after_ms,
        }
    }
}

/// The kernel's figures immediately before and immediately after the page scan.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Bracket {
    before: Kernel,
    after: Kernel,
}

impl From<&Profile> for Bracket {
    fn from(profile: &Profile) -> Bracket {
        Bracket {
            before: (&profile.kernel_before).into(),
            after: (&profile.kernel_after).into(),
        }
    }
}
