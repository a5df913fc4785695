//! Parts shared by several `/v2` replies.

use std::borrow::Cow;

use serde::Serialize;

use super::ApiError;
use super::query::bad;
use memprof_profile::measure::Measure;
pub(super) use memprof_profile::saved::unix_ms as millis;
use memprof_profile::{
    self as profile, Amounts, Faults, FreezeOutcome, Kind, Outcome, Profile, Report, Verdict,
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
#[derive(Debug, Serialize)]
pub(super) struct Loss {
    what: String,
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

/// Number of stacks that ended with this outcome.
#[derive(Debug, Serialize)]
pub(super) struct OutcomeRow {
    outcome: &'static str,
    complete: bool,
    stacks: u64,
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

/// The comparison of a total with the kernel's figures.
#[derive(Debug, Serialize)]
pub(super) struct Agreement {
    verdict: &'static str,
    resident: u64,
    low: u64,
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
#[derive(Debug, Serialize)]
pub(super) struct ReportInfo {
    number: u64,
    taken: u64,
    pid: u32,
    alive: bool,
    stopped_us: Option<u64>,
    stopped_in_turn: bool,
    freeze_error: Option<String>,
    exact: bool,
    #[serde(flatten)]
    counted: Counted,
    heap_exact: bool,
    heap_single: bool,
    /// Whether frames of an interpreted program are present.
    has_source: bool,
    faults: Option<Faults>,
    total: Kinds,
    /// The standard errors of totals that are estimates.
    total_error: Errors,
    page_tables: u64,
    agreement: Agreement,
    not_observed: Kinds,
    incomplete: Kinds,
    losses: Vec<Loss>,
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

/// The kernel's counters.
#[derive(Debug, Serialize)]
struct Kernel {
    #[serde(skip_serializing_if = "Option::is_none")]
    anonymous: Option<u64>,
    rss_anon: u64,
    rss_shmem: u64,
    rss_file: u64,
    swap: u64,
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

/// The kernel's counters before and after a scan.
#[derive(Debug, Serialize)]
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
