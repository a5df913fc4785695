//! Checks of this machine and of a configuration, for `tezos-recorder doctor`: what works, what does not, and what to do.
//!
//! The BPF programs are loaded for a moment and see nothing. Ports are opened and closed again. Nothing else is changed.

pub mod machine;
mod node;
mod server;
mod sources;

use std::fmt;

use serde::Serialize;

use crate::config::Config;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It works.
    Ok,
    /// It works with the limitation that the check describes.
    Degraded,
    /// The recorder does not start, or does not record this.
    Missing,
}

/// A check: the finding, the consequence and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The node; `None` for the machine and the server.
    pub node: Option<String>,
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// What does not work; empty if the status is `Ok`.
    pub consequence: String,
    /// What to do; empty if the status is `Ok`.
    pub remedy: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            node: None,
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
    ) -> Self {
        Self {
            node: None,
            name,
            status,
            found: found.into(),
            consequence: consequence.into(),
            remedy: remedy.into(),
        }
    }
}

/// All checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order in which they are shown.
    pub checks: Vec<Check>,
}

/// Checks this machine, and what a configuration needs. Without connections to record, BPF is not needed and not checked.
pub fn examine(config: Option<&Config>) -> Report {
    let nodes = config.map_or(&[][..], |config| &config.nodes);
    let mut checks = Vec::new();
    if config.is_none() || nodes.iter().any(|node| node.p2p.is_some()) {
        checks.extend(machine::checks(config));
    }
    checks.extend(config.into_iter().flat_map(server::checks));
    for node in nodes {
        let own = node::checks(node).into_iter().chain(sources::checks(node));
        checks.extend(own.map(|check| Check {
            node: Some(node.name.clone()),
            ..check
        }));
    }
    Report { checks }
}

impl Report {
    /// The exit status: 1 if something is missing.
    pub fn status(&self) -> u8 {
        u8::from(self.count(Status::Missing) > 0)
    }

    /// The checks as JSON.
    pub fn json(&self) -> String {
        // Texts and lists can always be written as JSON.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{text}\n")
    }

    fn count(&self, status: Status) -> usize {
        self.checks
            .iter()
            .filter(|check| check.status == status)
            .count()
    }
}

/// Writes a line for each check, two more if it is not ok, and a verdict.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .checks
            .iter()
            .map(|check| check.name.len())
            .max()
            .unwrap_or(0);
        let mut node = &None;
        for check in &self.checks {
            if check.node != *node {
                node = &check.node;
                writeln!(f, "\nnode {}", node.as_deref().unwrap_or_default())?;
            }
            let status = match check.status {
                Status::Ok => "ok",
                Status::Degraded => "degraded",
                Status::Missing => "missing",
            };
            writeln!(f, "{status:<8}  {:<width$}  {}", check.name, check.found)?;
            if check.status != Status::Ok {
                writeln!(f, "{:10}so: {}", "", check.consequence)?;
                writeln!(f, "{:10}to do: {}", "", check.remedy)?;
            }
        }
        match (self.count(Status::Missing), self.count(Status::Degraded)) {
            (0, 0) => writeln!(f, "\ntezos-recorder works here without restrictions."),
            (0, n) => writeln!(f, "\ntezos-recorder works here; degraded: {n}."),
            (n, _) => writeln!(f, "\ntezos-recorder does not work here; missing: {n}."),
        }
    }
}
