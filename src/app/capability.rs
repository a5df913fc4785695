//! Determines and reports memprof's abilities on this machine.
//!
//! [`Facts::gather`] examines the machine; `checks` only evaluates the facts, so every decision
//! can be tested with synthetic facts. [`doctor`] shows all checks; `require` refuses to start if
//! profiling cannot work.

mod access;
mod checks;
mod facts;
mod program;
mod trials;

use std::fmt::{self, Write};

pub use access::Access;
pub(crate) use access::require_access;
pub(crate) use checks::checks;
pub use facts::{BtfFact, Caps, Facts, Trial, Trials, VMLINUX_BTF};
use memprof_sys::kernel_version::KernelVersion;

/// The oldest kernel that memprof fully supports. Features of older kernels are detected by trying them, not by
/// version, because vendors backport newer BPF features.
pub(crate) const FULL_KERNEL: KernelVersion = KernelVersion(6, 1);

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// The feature works.
    Ok,
    /// memprof can profile with the limitation that the check describes.
    Degraded,
    /// memprof cannot profile.
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

/// One check: the finding, the consequence and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// The feature that was checked.
    pub name: &'static str,
    /// The result.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// The feature that does not work; empty when `status` is `Ok`.
    pub consequence: String,
    /// The remedy; empty when `status` is `Ok`.
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

/// The error if memprof cannot start: the failed checks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct UnfitError {
    /// The checks with status `Missing`; never empty.
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
            write!(f, "\nRun `memprof doctor` to see every check.")?;
        }
        Ok(())
    }
}

/// Checks whether memprof can profile with these facts.
///
/// Without `/proc` or privileges most other checks fail as well, so only that failure is reported.
///
/// # Errors
/// [`UnfitError`] if at least one check is [`Status::Missing`].
pub(crate) fn decide(facts: &Facts) -> Result<(), UnfitError> {
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

/// Examines this machine at start-up and checks whether memprof can profile here.
///
/// # Errors
/// [`UnfitError`] names what is missing, why it matters and what to do.
pub(crate) fn require() -> Result<(), UnfitError> {
    decide(&Facts::gather())
}

/// Gathers all facts for `memprof doctor`. Loads the whole probe only if all its requirements are met.
pub fn examine() -> Facts {
    let facts = Facts::gather();
    let fit = decide(&facts).is_ok();
    Facts {
        trials: Some(Trials::run(fit)),
        ..facts
    }
}

/// The output of `memprof doctor` and its exit status: 0 if memprof can profile here, otherwise 1.
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
        (0, 0) => "memprof works here without restrictions.".to_owned(),
        (0, n) if trials::others_refused(facts) => format!(
            "memprof works here only for processes of user id {}; degraded: {n}.",
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
