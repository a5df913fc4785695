//! Sampled allocations in groups: by function, stack, thread, size or lifetime, each with averages and its course over
//! time.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Allocation, Allocations, NamedAllocations};
use crate::Estimate;
use crate::tree::{Direction, Label, Merge, Naming, Paths};

/// What the allocations of a group have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// A function on the stack: an allocation is in the group of each.
    #[default]
    Function,
    /// The functions of the whole stack.
    Stack,
    /// The thread that made them.
    Thread,
    /// The size, between two powers of two.
    Size,
    /// How long they lived, between two powers of ten; those that live are a group.
    Lifetime,
}

/// Which group it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// A function, or a frame without one.
    Function(Label<'a>),
    /// The functions of a stack, innermost first.
    Stack(Vec<Label<'a>>),
    /// A thread, by its id in the initial pid namespace.
    Thread(u32),
    /// From this size in bytes, a power of two, to below the next.
    Size(u64),
    /// From this time in ns, 0 or a power of ten, to below the next, which is at least 1 µs; `None`: live ones.
    Lifetime(Option<u64>),
}

/// An average of estimated allocations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    /// The average.
    pub value: f64,
    /// Its standard error; an underestimate where few samples are behind it.
    pub error: f64,
}

/// The figures of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// Number of samples. (The other figures are estimates.)
    pub samples: u64,
    /// All of them, but not those that a forked child has inherited.
    pub all: Estimate,
    /// Those that live.
    pub live: Estimate,
    /// Those that are temporary.
    pub temporary: Estimate,
    size: Weighted,
    lifetime: Weighted,
    age: Weighted,
}

/// What an average and its error are made of: sums over samples, of which each stands for `objects` allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weighted {
    objects: f64,
    sum: f64,
    /// Sums of objects (objects − 1) times the figure to the power of 0, 1 and 2.
    spread: [f64; 3],
}

/// Bytes in equal parts of the time from the first sample to now.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Bytes allocated in each part.
    pub allocated: Vec<f64>,
    /// Bytes that live at the end of each part.
    pub live: Vec<f64>,
}

/// Allocations in groups.
#[derive(Debug)]
pub struct Groups<'a> {
    /// The groups' keys.
    pub keys: Vec<Key<'a>>,
    /// Their figures, in the same order.
    pub groups: Vec<Group>,
    /// The figures of all of them together; each allocation counts once.
    pub total: Group,
    /// The allocations, and the groups that each is in.
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
                GroupBy::Thread => vec![numbers.of(Key::Thread(one.thread))],
                GroupBy::Size => vec![numbers.of(Key::Size(1 << one.size.max(1).ilog2()))],
                GroupBy::Lifetime => vec![numbers.of(Key::Lifetime(decade(one, all)))],
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

    /// The courses of all of them together and of some groups, in that order, in so many parts.
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

/// Numbers of groups, in the order in which they are met.
#[derive(Default)]
struct Numbers<'a> {
    known: HashMap<Key<'a>, u32>,
    keys: Vec<Key<'a>>,
}

impl<'a> Numbers<'a> {
    fn of(&mut self, key: Key<'a>) -> u32 {
        let next = self.keys.len() as u32;
        *self.known.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            next
        })
    }
}

/// The groups of each stack, if they depend on it.
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
        inlined: false,
    };
    let side = named.report.side();
    let paths = Paths::columns(side, Direction::InnermostFirst, naming, |_| [1]);
    let labels = paths.labels().all();
    let mut of_stacks = vec![Vec::new(); named.allocations.stacks.len()];
    for (stack, steps) in paths.of_samples(0) {
        let steps = steps.iter().map(|id| labels[*id as usize]);
        let mut of: Vec<u32> = match by {
            GroupBy::Stack => vec![numbers.of(Key::Stack(steps.collect()))],
            _ => steps
                .map(|label| numbers.of(Key::Function(label)))
                .collect(),
        };
        // A recursive function has each allocation once.
        of.sort_unstable();
        of.dedup();
        if let Some(groups) = of_stacks.get_mut(stack as usize) {
            *groups = of;
        }
    }
    of_stacks
}

/// The power of ten that a freed allocation's lifetime has reached; below 1 µs 0.
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
        let estimate = Estimate::of(one.size, one.weight);
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

    /// The average size of all allocations, in bytes; `None` if there is none.
    pub fn average_size(&self) -> Option<Average> {
        self.size.average()
    }

    /// How long those that were freed lived, on average, in ns; `None` if there is none.
    pub fn average_lifetime(&self) -> Option<Average> {
        self.lifetime.average()
    }

    /// How long those that live have lived, on average, in ns; `None` if there is none.
    pub fn average_age(&self) -> Option<Average> {
        self.age.average()
    }
}

impl Weighted {
    fn add(&mut self, objects: f64, figure: f64) {
        // A sampler may count a large allocation as less than one.
        let variance = (objects * (objects - 1.0)).max(0.0);
        self.objects += objects;
        self.sum += objects * figure;
        for (sum, power) in self.spread.iter_mut().zip([1.0, figure, figure * figure]) {
            *sum += variance * power;
        }
    }

    /// A ratio of two estimates, with the error of its linear approximation.
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
        // Freed in a part: not live at its end.
        if let Some(live) = self.live.get_mut(born..end) {
            live.iter_mut().for_each(|bytes| *bytes += weight);
        }
    }
}
