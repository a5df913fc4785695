//! What makes figures weaker or needs an act, in words. What is as it should be is not mentioned.

use super::{MOSTLY, Note, share_without_stack};
use memprof_profile::{Outcome, Profile, Report, Verdict};
use memprof_sys::text::{duration, printable, size};

/// Share of the memory with stacks from which on stacks that are cut off are mentioned.
const CUT_OFF: f64 = 0.05;
/// Share of page faults without a stack up to which it is not mentioned.
const UNWALKED: f64 = 0.01;
/// Share of a control group's limit from which on it is near.
const NEAR: f64 = 0.9;

pub(super) fn of_report(report: &Report) -> Vec<Note> {
    let profile = &report.profile;
    let notes = [
        incomplete(profile),
        losses(profile),
        near_limit(profile),
        oom_kills(profile),
        before(profile),
        cut_off(profile),
        estimates(profile),
        report
            .symbols
            .advice()
            .map(|text| note(printable(text).into_owned(), None)),
    ];
    notes.into_iter().flatten().collect()
}

fn note(text: String, view: Option<&'static str>) -> Note {
    Note { text, view }
}

fn incomplete(profile: &Profile) -> Option<Note> {
    let agreement = profile.agreement();
    let text = match agreement.verdict() {
        Verdict::Equal | Verdict::Between => return None,
        Verdict::Incomplete => "Processes of the target are missing from all figures.".to_owned(),
        Verdict::Below => format!(
            "{} less than the kernel's figure.",
            size(agreement.low.saturating_sub(agreement.ours))
        ),
        Verdict::Above => format!(
            "{} more than the kernel's figure.",
            size(agreement.ours.saturating_sub(agreement.high))
        ),
    };
    Some(note(text, Some("health")))
}

fn losses(profile: &Profile) -> Option<Note> {
    let (what, count) = profile.losses.lost().next()?;
    let more = match profile.losses.lost().count() - 1 {
        0 => String::new(),
        more => format!(", and {more} more kinds"),
    };
    Some(note(
        format!("Lost: {count} {}{more}.", printable(what)),
        Some("health"),
    ))
}

fn near_limit(profile: &Profile) -> Option<Note> {
    let (_, figures) = profile.cgroup.as_deref()?.charged.as_ref().ok()?;
    let (usage, limit) = (figures.usage?, figures.limit?);
    let near = usage as f64 >= NEAR * limit as f64;
    near.then(|| {
        note(
            format!(
                "The control group has {} of its limit of {}.",
                size(usage),
                size(limit)
            ),
            Some("processes"),
        )
    })
}

fn oom_kills(profile: &Profile) -> Option<Note> {
    let kill = profile.oom_kills.newest.last()?;
    let more = match profile.oom_kills.count {
        0 | 1 => String::new(),
        n => format!(", the last of {n}"),
    };
    Some(note(
        format!(
            "{} (pid {}) was killed because memory had run out{more}.",
            printable(&kill.comm),
            kill.pid
        ),
        None,
    ))
}

fn before(profile: &Profile) -> Option<Note> {
    let share = share_without_stack(profile);
    let seen = ((1.0 - share) * 100.0).clamp(0.0, 100.0);
    (share >= MOSTLY && profile.target.alive).then(|| {
        note(
            format!(
                "memprof has seen {seen:.0} % of this memory arrive in the {} that it has been watching. What was there before \
                 has no stack: take a heap snapshot, or start the program with memprof.",
                duration(profile.observed)
            ),
            Some("heap"),
        )
    })
}

fn estimates(profile: &Profile) -> Option<Note> {
    let text = match profile.faults {
        None => "Page faults were not hooked: bytes by stack are estimates.".to_owned(),
        Some(faults) => {
            let unwalked = faults.unwalked as f64 / faults.all.max(1) as f64;
            if unwalked <= UNWALKED {
                return None;
            }
            format!(
                "The stacks of {:.0} % of the page faults were walked: bytes by stack are estimates, sums are exact.",
                (1.0 - unwalked) * 100.0
            )
        }
    };
    Some(note(text, Some("health")))
}

fn cut_off(profile: &Profile) -> Option<Note> {
    let rows = profile.outcomes();
    let all: u64 = rows.iter().map(|(_, _, bytes)| bytes).sum();
    let cut: Vec<&(Outcome, u64, u64)> = rows
        .iter()
        .filter(|(outcome, _, _)| outcome.cut_off().is_some())
        .collect();
    let bytes: u64 = cut.iter().map(|(_, _, bytes)| bytes).sum();
    let (outcome, ..) = cut.iter().max_by_key(|(_, _, bytes)| bytes)?;
    (bytes as f64 >= CUT_OFF * all as f64).then(|| {
        note(
            format!(
                "The stacks of {} are cut off, most of them: {}.",
                size(bytes),
                outcome.label()
            ),
            Some("health"),
        )
    })
}
