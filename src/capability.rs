//! What memprof can do here: kernel facts become decisions, in words.
//!
//! [`Facts::gather`] looks at the machine; [`checks()`] judges and touches nothing, so every decision
//! is tested from made-up facts. [`doctor`] shows all of them, [`require`] stops the start where the
//! main job cannot work.

mod access;
mod checks;
mod facts;
mod trials;

use std::fmt::{self, Write};

pub use access::{Access, require_access};
pub use checks::checks;
pub use facts::{BtfFact, Caps, Facts, KernelVersion, Trial, Trials, VMLINUX_BTF};

/// The oldest kernel on which memprof keeps all that it promises. What older ones can do is found out
/// by trying, not by their version: vendors bring newer BPF back to older kernels.
pub const FULL_KERNEL: KernelVersion = KernelVersion(6, 1);
/// How well something that memprof needs is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As it should be.
    Ok,
    /// memprof's main job works, with less; the check says what.
    Degraded,
    /// memprof's main job does not work.
    Missing,
}

impl Status {
    /// Short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Degraded => "degraded",
            Status::Missing => "missing",
        }
    }
}

/// One decision: what was looked for, what was found, what follows and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked for.
    pub name: &'static str,
    /// The decision.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What does not work; empty when `status` is `Ok`.
    pub consequence: String,
    /// What to do; empty when `status` is `Ok`.
    pub remedy: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            status: Status::Ok,
            found: found.into(),
            consequence: String::new(),
            remedy: String::new(),
        }
    }

    fn not_ok(
        status: Status,
        name: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            name,
            status,
            found: found.into(),
            consequence: consequence.into(),
            remedy: remedy.into(),
        }
    }
}

/// Why memprof cannot start: the checks that found something missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct UnfitError {
    /// The missing things; never empty.
    pub missing: Vec<Check>,
}

impl fmt::Display for UnfitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memprof cannot profile anything here")?;
        for check in &self.missing {
            write!(f, "\n  {}: {}", check.name, check.found)?;
            write!(f, "\n    {}", check.consequence)?;
            write!(f, "\n    what to do: {}", check.remedy)?;
        }
        if self.missing.iter().any(|c| c.name != "privileges") {
            write!(f, "\n`memprof doctor` shows every check")?;
        }
        Ok(())
    }
}

/// What stands in the way of the main job, if anything.
///
/// Without `/proc` or privileges most other probes fail as well: then that is the only thing named.
///
/// # Errors
/// [`UnfitError`], when at least one check is [`Status::Missing`].
pub fn decide(facts: &Facts) -> Result<(), UnfitError> {
    let mut missing = checks(facts);
    missing.retain(|check| check.status == Status::Missing);
    if missing
        .first()
        .is_some_and(|c| ["/proc", "privileges"].contains(&c.name))
    {
        missing.truncate(1);
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(UnfitError { missing })
}

/// Looks at this machine and says whether memprof's main job works here; called at the start.
///
/// # Errors
/// [`UnfitError`], with what is missing, why it matters and what to do.
pub fn require() -> Result<(), UnfitError> {
    decide(&Facts::gather())
}

/// All that `memprof doctor` looks at. The whole probe is not tried where something that it needs is missing.
pub fn examine() -> Facts {
    let facts = Facts::gather();
    let fit = decide(&facts).is_ok();
    Facts {
        trials: Some(Trials::run(fit)),
        ..facts
    }
}

/// What `memprof doctor` prints, and its exit status: 0 if the main job works here, else 1.
pub fn doctor(facts: &Facts) -> (String, u8) {
    let checks = checks(facts);
    let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &checks {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<8}  {:<width$}  {}",
            check.status.label(),
            check.name,
            check.found
        );
        if check.status != Status::Ok {
            let _ = writeln!(text, "{:10}so: {}", "", check.consequence);
            let _ = writeln!(text, "{:10}to do: {}", "", check.remedy);
        }
    }
    let count = |status| checks.iter().filter(|c| c.status == status).count();
    let (missing, degraded) = (count(Status::Missing), count(Status::Degraded));
    let verdict = match (missing, degraded) {
        (0, 0) => "memprof works here in full.".to_owned(),
        (0, n) if trials::others_refused(facts) => format!(
            "memprof works here for processes of user id {} alone; degraded: {n}.",
            facts.uid
        ),
        (0, n) => format!("memprof works here; degraded: {n}."),
        (n, _) => format!("memprof does not work here; missing: {n}."),
    };
    let _ = writeln!(text, "\n{verdict}");
    (text, u8::from(missing > 0))
}

#[cfg(test)]
mod tests;
