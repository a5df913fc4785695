//! The control groups of a profile's processes.

use std::collections::BTreeMap;

use super::{Amounts, Profile};
use memprof_sys::process::Container;

/// The processes that are in one control group itself, not in those below it.
#[derive(Clone, Copy, Debug)]
pub struct GroupTotal<'a> {
    /// The group, with the container and the pod that its name says.
    pub container: &'a Container,
    /// How many processes it has.
    pub processes: usize,
    /// The sum of their totals: a page that several of them map counts for each.
    pub total: Amounts,
}

impl Profile {
    /// The control groups of several processes, in the order of their names. Processes of an unknown group are in none.
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
