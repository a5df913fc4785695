//! The control groups of the processes in a profile.

use std::collections::BTreeMap;

use super::{Amounts, Profile};
use memprof_sys::process::Container;

/// The processes directly in one control group, without those in its descendants.
#[derive(Clone, Copy, Debug)]
pub struct GroupTotal<'a> {
    /// The group, with the container and the pod that its name contains.
    pub container: &'a Container,
    /// Number of processes.
    pub processes: usize,
    /// The sum of the processes' totals. A page that several of them map counts for each of them.
    pub total: Amounts,
}

impl Profile {
    /// The control groups of the processes, in the order of their names. A process whose group is unknown is omitted.
    pub fn groups(&self) -> Vec<GroupTotal<'_>> {
        let mut groups: BTreeMap<&str, GroupTotal<'_>> = BTreeMap::new();
        for member in self.members() {
            if let Some(container) = member.container {
                let new = GroupTotal {
                    container,
                    processes: 0,
                    total: Amounts::default(),
                };
                let group = groups.entry(&container.group).or_insert(new);
                group.processes += 1;
                group.total += *member.total;
            }
        }
        groups.into_values().collect()
    }
}
