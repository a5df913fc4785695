//! Groups of sampled allocations: by function, stack, thread, size or lifetime, each with averages and a time course.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Allocation, Allocations, NamedAllocations};
use crate::Estimate;
use crate::tree::{Direction, Label, Merge, Naming, Paths};

/// The property by which allocations are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// A function on the stack. An allocation is in the group of each of its functions.
    #[default]
    Function,
    /// The functions of the whole stack.
    Stack,
    /// The allocating thread.
    Thread,
    /// The size, in ranges between powers of two.
    Size,
    /// The lifetime, in ranges between powers of ten. Live allocations are a group of their own.
    Lifetime,
}

/// The identity of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// A function, or a frame without one.
    Function(Label<'a>),
    /// The functions of a stack, innermost first.
    Stack(Vec<Label<'a>>),
    /// A thread, by its id in the initial pid namespace.
    Thread(u32),
    /// The lower bound of the size in bytes, a power of two. The upper bound, exclusive, is the next power of two.
    Size(u64),
    /// The lower bound of the lifetime in ns, 0 or a power of ten from 1 µs on. The upper bound, exclusive, is the next
    /// one. `None`: live allocations.
    Lifetime(Option<u64>),
}

/// An average over estimated allocations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    /// The average.
    pub value: f64,
    /// The standard error of `value`; an underestimate if it is based on few samples.
    pub error: f64,
}

/// The figures of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// Number of samples. All other figures are estimates.
    pub samples: u64,
    /// All allocations, except those that a forked child has inherited.
    pub all: Estimate,
    /// Live allocations.
    pub live: Estimate,
    /// Temporary allocations.
    pub temporary: Estimate,
    size: Weighted,
    lifetime: Weighted,
    age: Weighted,
}

/// Accumulates an average and its error: sums over samples, each of which represents `objects` allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weighted {
    objects: f64,
    sum: f64,
    /// Sums of objects · (objects − 1) · figureⁿ for n = 0, 1 and 2.
    spread: [f64; 3],
}

/// Bytes over time: the time from the first sample to now, divided into equal intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Bytes allocated in each interval.
    pub allocated: Vec<f64>,
    /// Live bytes at the end of each interval.
    pub live: Vec<f64>,
}

/// Allocations in groups.
#[derive(Debug)]
pub struct Groups<'a> {
    /// The keys of the groups.
    pub keys: Vec<Key<'a>>,
    /// The figures of the groups, in the order of `keys`.
    pub groups: Vec<Group>,
    /// The figures of all groups together; each allocation counts once.
    pub total: Group,
    /// Index of each allocation, and the numbers of its groups.
    members: Vec<(usize, Vec<u32>)>,
    all: &'a Allocations,
}

impl<'a> Groups<'a> {
    /// Groups the allocations with these indices.
    pub fn new(named: &'a NamedAllocations, chosen: &[usize], by: GroupBy) -> Groups<'a> {
        let all = &*named.allocations;
        let mut numbers = Numbers::default();
        let of_stacks = groups_of_stacks(named, by, &mut numbers);
        let mut members = Vec::new();
        for &at in chosen {
            let Some(one) = all.all.get(at) else { continue };
            let of = match by {
                GroupBy::Function | GroupBy::Stack => of_stacks
                    .get(one.stack as usize)
                    .cloned()
                    .unwrap_or_default(),
                GroupBy::Thread => vec![numbers.number(Key::Thread(one.thread))],
                GroupBy::Size => vec![numbers.number(Key::Size(1 << one.size.max(1).ilog2()))],
                GroupBy::Lifetime => vec![numbers.number(Key::Lifetime(decade(one, all)))],
            };
            members.push((at, of));
        }
        let mut total = Group::default();
        let mut groups = vec![Group::default(); numbers.keys.len()];
        for (at, of) in &members {
            let one = &all.all[*at];
            total.add(one, all);
            of.iter()
                .for_each(|&group| groups[group as usize].add(one, all));
        }
        Groups {
            keys: numbers.keys,
            groups,
            total,
            members,
            all,
        }
    }

    /// The courses of all allocations and of the groups `of`, in that order, in `parts` intervals.
    pub fn courses(&self, of: &[usize], parts: usize) -> (Course, Vec<Course>) {
        let parts = parts.max(1);
        let empty = Course {
            allocated: vec![0.0; parts],
            live: vec![0.0; parts],
        };
        let (mut total, mut courses) = (empty.clone(), vec![empty; of.len()]);
        let wanted: HashMap<usize, usize> = of.iter().copied().zip(0..).collect();
        for (at, groups) in &self.members {
            let one = &self.all.all[*at];
            total.add(one, self.all);
            for group in groups {
                if let Some(&at) = wanted.get(&(*group as usize)) {
                    courses[at].add(one, self.all);
                }
            }
        }
        (total, courses)
    }
}

/// Numbers of groups, in the order of their first appearance.
#[derive(Default)]
struct Numbers<'a> {
    known: HashMap<Key<'a>, u32>,
    keys: Vec<Key<'a>>,
}

impl<'a> Numbers<'a> {
    fn number(&mut self, key: Key<'a>) -> u32 {
        let next = self.keys.len() as u32;
        *self.known.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            next
        })
    }
}

/// The groups of each stack; empty if `by` does not depend on the stack.
fn groups_of_stacks<'a>(
    named: &'a NamedAllocations,
    by: GroupBy,
    numbers: &mut Numbers<'a>,
) -> Vec<Vec<u32>> {
    if !matches!(by, GroupBy::Function | GroupBy::Stack) {
        return Vec::new();
    }
    let naming = Naming {
        merge: Merge::Function,
        inlined: true,
    };
    let side = named.report.side();
    let paths = Paths::columns(side, Direction::InnermostFirst, naming, |_| [1]);
    let labels = paths.labels().all();
    let mut of_stacks = vec![Vec::new(); named.allocations.stacks.len()];
    for (stack, steps) in paths.of_samples(0) {
        let steps = steps.iter().map(|id| labels[*id as usize]);
        let mut of: Vec<u32> = match by {
            GroupBy::Stack => vec![numbers.number(Key::Stack(steps.collect()))],
            _ => steps
                .map(|label| numbers.number(Key::Function(label)))
                .collect(),
        };
        // A recursive function counts each allocation once.
        of.sort_unstable();
        of.dedup();
        if let Some(groups) = of_stacks.get_mut(stack as usize) {
            *groups = of;
        }
    }
    of_stacks
}

/// The largest power of ten that the lifetime of a freed allocation reaches, in ns; 0 below 1 µs. `None` if it is live.
fn decade(one: &Allocation, all: &Allocations) -> Option<u64> {
    one.freed_ns?;
    let lifetime = one.lifetime_ns(all);
    Some(match lifetime {
        0..1000 => 0,
        _ => 10u64.pow(lifetime.ilog10()),
    })
}

impl Group {
    fn add(&mut self, one: &Allocation, all: &Allocations) {
        let estimate = Estimate::from_sample(one.size, one.weight);
        let lifetime = one.lifetime_ns(all) as f64;
        self.samples += 1;
        if !one.inherited {
            self.all += estimate;
            self.size.add(estimate.objects, one.size as f64);
        }
        match one.freed_ns {
            None => {
                self.live += estimate;
                self.age.add(estimate.objects, lifetime);
            }
            Some(_) if !one.inherited => self.lifetime.add(estimate.objects, lifetime),
            Some(_) => {}
        }
        if one.is_temporary(all) {
            self.temporary += estimate;
        }
    }

    /// The average size of all allocations, in bytes; `None` if there are none.
    pub fn average_size(&self) -> Option<Average> {
        self.size.average()
    }

    /// The average lifetime of freed allocations, in ns; `None` if there are none.
    pub fn average_lifetime(&self) -> Option<Average> {
        self.lifetime.average()
    }

    /// The average age of live allocations, in ns; `None` if there are none.
    pub fn average_age(&self) -> Option<Average> {
        self.age.average()
    }
}

impl Weighted {
    fn add(&mut self, objects: f64, figure: f64) {
        // `objects` is less than one if a sampler counts a large allocation as less than its size.
        let variance = (objects * (objects - 1.0)).max(0.0);
        self.objects += objects;
        self.sum += objects * figure;
        for (sum, power) in self.spread.iter_mut().zip([1.0, figure, figure * figure]) {
            *sum += variance * power;
        }
    }

    /// A ratio of two estimates, with the error of the ratio's linear approximation.
    fn average(&self) -> Option<Average> {
        if self.objects <= 0.0 {
            return None;
        }
        let value = self.sum / self.objects;
        let [count, sum, squares] = self.spread;
        let variance = squares - 2.0 * value * sum + value * value * count;
        Some(Average {
            value,
            error: variance.max(0.0).sqrt() / self.objects,
        })
    }
}

impl Course {
    fn add(&mut self, one: &Allocation, all: &Allocations) {
        let parts = self.live.len();
        let part = |at: u64| {
            let part = u128::from(at) * parts as u128 / u128::from(all.now_ns.max(1));
            (part as usize).min(parts - 1)
        };
        let weight = one.weight as f64;
        let born = part(one.born_ns);
        if !one.inherited {
            self.allocated[born] += weight;
        }
        let end = one.freed_ns.map_or(parts, part);
        // An allocation freed within an interval is not live at the end of that interval.
        if let Some(live) = self.live.get_mut(born..end) {
            live.iter_mut().for_each(|bytes| *bytes += weight);
        }
    }
}
