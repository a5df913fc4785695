//! The instructions of a function, as far as they have been followed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::state::FrameState;

/// An instruction that has been reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    pub state: FrameState,
    /// Number of its bytes that have the rule.
    pub size: u8,
    /// Whether other functions reach it in another state.
    pub disputed: bool,
}

/// A function.
#[derive(Default)]
pub struct Function {
    pub reached: HashMap<u64, Reached>,
    /// Start addresses of other functions: those that it calls or tail-calls, and those whose address it takes.
    pub calls: Vec<u64>,
    pub takes: Vec<u64>,
    /// Whether it may return.
    pub returns: bool,
    /// Instructions that are known to end the function, or to be part of it.
    pub ends: HashSet<u64>,
    /// Pairs of an instruction and its successor.
    pub edges: Vec<(u64, u64)>,
}

impl Function {
    /// Removes the rule from the last byte of an instruction.
    pub fn shorten(&mut self, at: u64) {
        if let Some(reached) = self.reached.get_mut(&at) {
            reached.size = reached.size.saturating_sub(1);
        }
    }

    /// Removes paths that lead neither to an end nor into a loop. Such a path follows a call that does not return, and
    /// may be part of another function.
    pub fn prune(&mut self) {
        let mut followers: HashMap<u64, usize> = HashMap::new();
        let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
        for (from, to) in &self.edges {
            *followers.entry(*from).or_default() += 1;
            before.entry(*to).or_default().push(*from);
        }
        let all = self.reached.keys().copied();
        let mut dead: Vec<u64> = all
            .filter(|at| !followers.contains_key(at) && !self.ends.contains(at))
            .collect();
        while let Some(at) = dead.pop() {
            self.reached.remove(&at);
            for from in before.remove(&at).unwrap_or_default() {
                let left = followers.entry(from).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 && !self.ends.contains(&from) {
                    dead.push(from);
                }
            }
        }
    }
}

/// Merges the instructions of a function into those of all functions.
pub fn add(all: &mut HashMap<u64, Reached>, function: HashMap<u64, Reached>) {
    for (at, new) in function {
        match all.entry(at) {
            Entry::Vacant(entry) => {
                entry.insert(new);
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().disputed |= entry.get().state != new.state;
            }
        }
    }
}
