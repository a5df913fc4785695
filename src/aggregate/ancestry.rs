//! Which ended address spaces are still needed: a child's pages stand under its parent's records until
//! it has written to them, however long the parent has ended.

use std::collections::{HashMap, HashSet};

use crate::event::MmId;

/// How many living descendants address spaces have.
#[derive(Debug, Default)]
pub(super) struct Ancestry {
    /// Those that have any.
    living: HashMap<MmId, usize>,
    /// Those of them that have ended themselves.
    kept: HashSet<MmId>,
}

impl Ancestry {
    /// An address space was forked from these.
    pub(super) fn begins(&mut self, ancestors: &[MmId]) {
        for ancestor in ancestors {
            *self.living.entry(*ancestor).or_default() += 1;
        }
    }

    /// An address space ends, which was forked from these. Returns those that nobody needs any more.
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
