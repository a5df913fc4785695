//! Gates: limits on the change between two profiles, for unattended checks (`--fail-if`).

use std::fmt;

use crate::measure::Unit;
use crate::tree::Table;
use crate::{Kind, Report};

/// A limit on one figure. It fires if the figure is above the limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// The text from which the gate was parsed.
    pub text: String,
    /// The measured memory.
    pub subject: Subject,
    /// The measured figure of `subject`.
    pub figure: Figure,
    /// Whether the gate also fires if the figure equals the limit.
    pub or_equal: bool,
    /// The limit.
    pub limit: Limit,
}

/// The memory that a gate measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The total of this kind.
    Kind(Kind),
    /// The sum over all functions with this name.
    Function(String),
    /// The highest resident memory of the process: the kernel's `VmHWM`.
    Peak,
}

/// The figure of a subject that a gate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The increase from the earlier to the later profile; 0 if the subject shrank.
    Growth,
    /// The amount in the later profile.
    Size,
}

/// The value of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// An amount in the subject's unit, for example bytes.
    Amount(u64),
    /// Per cent of the amount in the earlier profile; only for [`Figure::Growth`].
    Percent(f64),
}

/// The result of a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding<'g> {
    gate: &'g Gate,
    before: u64,
    after: u64,
    unit: Unit,
    /// Whether the gate fires.
    pub fires: bool,
    /// Whether the function is missing from both profiles.
    pub is_missing: bool,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Kind(Kind::All) => f.write_str("total"),
            Subject::Kind(kind) => f.write_str(kind.name()),
            Subject::Function(name) => write!(f, "function {name}"),
            Subject::Peak => f.write_str("peak"),
        }
    }
}

impl Gate {
    /// Checks that both profiles counted the gate's subject; functions are measured in memory of `kind`.
    ///
    /// # Errors
    /// A message that names the missing measure and the option that enables it.
    pub fn check(&self, [before, after]: [&Report; 2], kind: Kind) -> Result<(), String> {
        let kind = self.kind(kind);
        for (which, report) in [("earlier", before), ("later", after)] {
            if self.subject == Subject::Peak && report.profile.peak.is_none() {
                return Err(format!(
                    "{:?} cannot be checked: the {which} profile does not know its peak; save it with this version",
                    self.text
                ));
            }
            if !report.profile.counts(kind) {
                let option = kind.measure().option.unwrap_or_default();
                return Err(format!(
                    "{:?} cannot be checked: the {which} profile does not count {}; save it with {option}",
                    self.text,
                    kind.measure().title
                ));
            }
        }
        Ok(())
    }

    fn kind(&self, of_functions: Kind) -> Kind {
        match self.subject {
            Subject::Kind(kind) => kind,
            Subject::Function(_) => of_functions,
            Subject::Peak => Kind::All,
        }
    }

    /// Compares two profiles; functions are measured in memory of `kind`.
    pub fn evaluate(&self, [before, after]: [&Report; 2], kind: Kind) -> Finding<'_> {
        let unit = self.kind(kind).unit();
        let (sizes, is_missing) = match &self.subject {
            Subject::Kind(kind) => {
                let of = |report: &Report| kind.figure(&report.profile.total);
                ([of(before), of(after)], false)
            }
            Subject::Peak => {
                let of = |report: &Report| report.profile.peak.map_or(0, |peak| peak.highest());
                ([of(before), of(after)], false)
            }
            Subject::Function(name) => {
                let table = Table::new([before.side(), after.side()], kind, false);
                let named = table
                    .rows
                    .iter()
                    .filter(|row| row.code.function == Some(name));
                let mut sizes = [0u64; 2];
                let mut is_missing = true;
                for row in named {
                    is_missing = false;
                    for (size, more) in sizes.iter_mut().zip(row.total) {
                        *size = size.saturating_add(more);
                    }
                }
                (sizes, is_missing)
            }
        };
        let [before, after] = sizes;
        Finding {
            gate: self,
            before,
            after,
            unit,
            fires: self.fires(before, after),
            is_missing,
        }
    }

    fn fires(&self, before: u64, after: u64) -> bool {
        let figure = match self.figure {
            Figure::Growth => after.saturating_sub(before),
            Figure::Size => after,
        };
        // Figures are below 2^53 and therefore exact as `f64`.
        let (figure, limit) = match self.limit {
            Limit::Amount(amount) => (figure as f64, amount as f64),
            Limit::Percent(percent) => (figure as f64 * 100.0, percent * before as f64),
        };
        figure > limit || (self.or_equal && figure == limit)
    }
}

/// Formats the figure and the limit as one sentence.
impl fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            gate,
            before,
            after,
            ..
        } = self;
        let unit = self.unit.name();
        match gate.figure {
            Figure::Size => write!(f, "{} has {after} {unit}", gate.subject)?,
            Figure::Growth => {
                let verb = if after < before { "shrank" } else { "grew" };
                let change = after.abs_diff(*before);
                write!(f, "{} {verb} by {change} {unit}", gate.subject)?;
                if *before > 0 {
                    let percent = change as f64 * 100.0 / *before as f64;
                    write!(f, " ({percent:.2} %)")?;
                }
                write!(f, ", from {before} to {after}")?;
            }
        }
        write!(f, "; the limit of {:?} is ", gate.text)?;
        match gate.limit {
            Limit::Amount(amount) => write!(f, "{amount} {unit}"),
            Limit::Percent(percent) => {
                let allowed = percent * *before as f64 / 100.0;
                write!(f, "{percent} % of {before}, {allowed:.0} {unit}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::report;
    use crate::testing::{at, kib, profile};

    fn gate(subject: Subject, figure: Figure, limit: Limit) -> Gate {
        Gate {
            text: "the gate".to_owned(),
            subject,
            figure,
            or_equal: false,
            limit,
        }
    }

    fn pair(before: u64, after: u64) -> [Report; 2] {
        [before, after].map(|size| {
            let samples: &[_] = &[(&[at(0, 1)][..], kib(size, 0)), (&[at(0, 2)], kib(100, 0))];
            report(profile(samples, &[]), &[(at(0, 1), "grows")])
        })
    }

    #[test]
    fn a_gate_fires_above_its_limit_only() {
        let [before, after] = &pair(100, 120);
        let function = || Subject::Function("grows".to_owned());
        let all = || Subject::Kind(Kind::All);
        let kib = |n: u64| Limit::Amount(n << 10);
        for (subject, figure, limit, fires) in [
            (all(), Figure::Growth, Limit::Percent(9.99), true),
            (all(), Figure::Growth, Limit::Percent(10.0), false),
            (all(), Figure::Growth, kib(19), true),
            (all(), Figure::Growth, kib(20), false),
            (function(), Figure::Growth, Limit::Percent(19.0), true),
            (function(), Figure::Growth, Limit::Percent(20.0), false),
            (function(), Figure::Size, kib(119), true),
            (function(), Figure::Size, kib(120), false),
            (
                Subject::Kind(Kind::Cache),
                Figure::Growth,
                Limit::Amount(0),
                false,
            ),
        ] {
            let mut gate = gate(subject, figure, limit);
            let found = gate.evaluate([before, after], Kind::All);
            assert_eq!(found.fires, fires, "{found}");
            // A subject that shrinks has no growth.
            let back = gate.evaluate([after, before], Kind::All);
            assert!(figure == Figure::Size || !back.fires, "{back}");
            gate.or_equal = true;
            let found = gate.evaluate([before, after], Kind::All);
            assert!(found.fires, "{found}");
        }
    }

    #[test]
    fn the_message_has_the_figure_and_the_limit() {
        let [before, after] = &pair(100, 120);
        let gate = gate(
            Subject::Kind(Kind::Anon),
            Figure::Growth,
            Limit::Percent(5.0),
        );
        let said = gate.evaluate([before, after], Kind::All).to_string();
        let wanted = "anon grew by 20480 bytes (10.00 %), from 204800 to 225280; the limit of \"the gate\" is 5 % \
                      of 204800, 10240 bytes";
        assert_eq!(said, wanted);
    }

    #[test]
    fn from_nothing_any_growth_is_too_much() {
        let [before, after] = &pair(0, 4);
        let grows = Subject::Function("grows".to_owned());
        let gate = gate(grows, Figure::Growth, Limit::Percent(1000.0));
        assert!(gate.evaluate([before, after], Kind::All).fires);
        assert!(!gate.evaluate([before, before], Kind::All).fires);
        let missing = Gate {
            subject: Subject::Function("nowhere".to_owned()),
            ..gate
        };
        let found = missing.evaluate([before, after], Kind::All);
        assert!(found.is_missing && !found.fires);
    }

    #[test]
    fn what_was_not_counted_is_an_error() {
        let [before, after] = &pair(4, 4);
        let kernel = Kind::by_name("kernel").unwrap();
        let gate = gate(Subject::Kind(kernel), Figure::Growth, Limit::Amount(0));
        let why = gate.check([before, after], Kind::All).unwrap_err();
        assert!(why.contains("--kernel"), "{why}");
    }
}
