//! Which ended address spaces are still needed: a child's pages use its parent's records until the child writes to
//! them, no matter how long ago the parent ended.

use std::collections::{HashMap, HashSet};

use memprof_sys::ids::MmId;

/// The number of living descendants of each address space.
#[derive(Debug, Default)]
pub(super) struct Ancestry {
    /// Address spaces that have living descendants, with their number.
    living: HashMap<MmId, usize>,
    /// Those of them that have ended.
    kept: HashSet<MmId>,
}

impl Ancestry {
    /// Adds an address space that was forked from `ancestors`.
    pub(super) fn begins(&mut self, ancestors: &[MmId]) {
        for ancestor in ancestors {
            *self.living.entry(*ancestor).or_default() += 1;
        }
    }

    /// Removes an ended address space that was forked from `ancestors`. Returns those that are no longer needed.
    pub(super) fn ends(&mut self, mm: MmId, ancestors: &[MmId]) -> Vec<MmId> {
        let mut unneeded = Vec::new();
        for ancestor in ancestors {
            let Some(living) = self.living.get_mut(ancestor) else {
                continue;
            };
            *living -= 1;
            if *living == 0 {
                self.living.remove(ancestor);
                if self.kept.remove(ancestor) {
                    unneeded.push(*ancestor);
                }
            }
        }
        match self.living.contains_key(&mm) {
            true => drop(self.kept.insert(mm)),
            false => unneeded.push(mm),
        }
        unneeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_one_is_needed_until_its_last_descendant_ends() {
        let mut a = Ancestry::default();
        let mm = |ids: &[u32]| ids.iter().map(|id| MmId(*id)).collect::<Vec<_>>();
        a.begins(&mm(&[1]));
        a.begins(&mm(&[2, 1]));
        a.begins(&mm(&[1]));
        assert_eq!(a.ends(MmId(1), &[]), mm(&[]));
        assert_eq!(a.ends(MmId(2), &mm(&[1])), mm(&[]));
        assert_eq!(a.ends(MmId(4), &mm(&[1])), mm(&[4]));
        assert_eq!(a.ends(MmId(3), &mm(&[2, 1])), mm(&[2, 1, 3]));
        assert!(a.living.is_empty() && a.kept.is_empty());
    }
}
