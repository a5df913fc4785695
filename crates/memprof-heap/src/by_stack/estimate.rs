//! The estimator.
//!
//! Each sampled chunk i stands for 1/pᵢ chunks, so that Σ yᵢ/pᵢ is an unbiased estimate of the sum of any figure y
//! over chunks (Horvitz and Thompson). The estimate of its variance is Σ yᵢ² (1 − pᵢ)/pᵢ².
//!
//! The exact sum Y of a stratum is known. If each of its chunks could be sampled, a stack gets the fraction of Y that
//! it has of the samples' weights. This is a ratio estimate: its bias is of the order of one sample's contribution,
//! and its variance is that of the linearised ratio, Σ (1 − pᵢ)/pᵢ² (zᵢ − q yᵢ)² (Y/Ŷ)², where z is y for the stack's
//! own chunks and 0 for others, and q is the stack's fraction.
//!
//! Otherwise a stack gets its sum of weights, and the rest of Y counts as not sampled. The strata of a group share
//! one rest, except that strata whose chunks are always sampled have a rest of their own. Where the samples of one
//! stratum stand for more than its bytes by chance, the rest of the other strata is smaller. Limiting each stratum to
//! its own bytes would bias all estimates downwards. Only if the samples of the whole group stand for more than its
//! bytes are all of them scaled down by the same factor.

use super::holdings::{Class, HeldBytes, Holdings, Joined};
use super::round::apportion;
use super::strata::{Classing, Method, Stratum};

/// The figure to estimate.
pub(super) struct Quantity {
    /// The figure whose exact sums are known.
    pub of_all: fn(&HeldBytes) -> u64,
    /// The estimated figure: the same one, or a portion of it.
    pub wanted: fn(&Joined) -> f64,
}

/// An estimate with its variance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    pub value: f64,
    pub variance: f64,
}

/// The estimates of a cell. Each array has the reachable chunks first, then the unreachable ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// Whole bytes. If the estimated figure is the whole figure, cells and rests add up to the exact sums.
    pub bytes: [u64; 2],
    pub estimates: [Estimate; 2],
}

/// Bytes of a stratum or class that belong to no cell.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub group: usize,
    pub classes: std::ops::Range<usize>,
    pub method: Method,
    pub bytes: u64,
    /// Variance of an estimate; 0 for exact bytes.
    pub variance: f64,
}

/// The division of one quantity among cells.
pub(super) struct Divided {
    pub cells: Vec<Cell>,
    pub rests: Vec<Rest>,
}

/// Sums over the samples of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Σ z/p
    value: f64,
    /// Σ (1 − p)/p² z², and the same with z y for z²
    square: f64,
    mixed: f64,
}

/// Divides a quantity among cells. `cell_of` has the cell of each sample.
pub(super) fn divide(
    strata: &[Stratum],
    classing: &Classing,
    holdings: &Holdings,
    cell_of: &[u32],
    quantity: &Quantity,
) -> Divided {
    let (classes, joined) = ((classing.classes)(holdings), &holdings.joined[..]);
    let class_of = classing.class_of;
    let cells = cell_of.iter().max().map_or(0, |most| *most as usize + 1);
    let mut divided = Divided {
        cells: vec![Cell::default(); cells],
        rests: Vec::new(),
    };
    let mut by_class: Vec<usize> = (0..joined.len()).collect();
    by_class.sort_by_key(|index| class_of(&joined[*index]));
    let of = |stratum: &Stratum| {
        let at = |class| by_class.partition_point(|index| class_of(&joined[*index]) < class);
        &by_class[at(stratum.classes.start)..at(stratum.classes.end)]
    };
    let whole = |classes: &[Class]| -> u64 {
        let each = classes.iter().map(|class| (quantity.of_all)(&class.held));
        each.sum()
    };
    let mut adding = Adding {
        joined,
        class_of,
        cell_of,
        quantity,
        sums: vec![Sums::default(); cells],
        touched: Vec::new(),
    };
    for stratum in strata {
        let all = whole(&classes[stratum.classes.clone()]);
        let rest = |method| Rest {
            group: stratum.group,
            classes: stratum.classes.clone(),
            method,
            bytes: all,
            variance: 0.0,
        };
        match stratum.method {
            Method::Weights => {}
            Method::TooFew => divided.rests.push(rest(Method::TooFew)),
            Method::Shares
                if !adding.shares(of(stratum), all, stratum.group, &mut divided.cells) =>
            {
                divided.rests.push(rest(Method::TooFew));
            }
            Method::Shares => {}
        }
    }
    let pools = (0..super::holdings::GROUPS).flat_map(|group| [(group, false), (group, true)]);
    for (group, is_certain) in pools {
        let by_weights = |s: &&Stratum| {
            (s.group, s.is_certain, s.method) == (group, is_certain, Method::Weights)
        };
        let indexes = strata
            .iter()
            .filter(by_weights)
            .flat_map(|s| s.classes.clone());
        let mut sums: Vec<(usize, u64)> = indexes
            .map(|class| (class, (quantity.of_all)(&classes[class].held)))
            .collect();
        sums.sort_unstable();
        let samples: Vec<usize> = strata
            .iter()
            .filter(by_weights)
            .flat_map(of)
            .copied()
            .collect();
        adding.weights(&samples, &sums, group, &mut divided);
    }
    divided
}

struct Adding<'a> {
    joined: &'a [Joined],
    class_of: fn(&Joined) -> usize,
    cell_of: &'a [u32],
    quantity: &'a Quantity,
    /// Indexed by cell. Zero except for the cells in `touched`.
    sums: Vec<Sums>,
    touched: Vec<u32>,
}

impl Adding<'_> {
    /// Adds samples to the sums of their cells. Returns value and square of the whole figure over these samples.
    fn add(&mut self, samples: &[usize]) -> (f64, f64) {
        let (mut value, mut square) = (0.0, 0.0);
        for index in samples {
            let joined = &self.joined[*index];
            let p = joined.placed.p;
            let all = (self.quantity.of_all)(&joined.held) as f64;
            let wanted = (self.quantity.wanted)(joined);
            let factor = (1.0 - p) / (p * p);
            value += all / p;
            square += factor * all * all;
            let cell = self.cell_of[*index];
            let sums = &mut self.sums[cell as usize];
            if sums.value == 0.0 {
                self.touched.push(cell);
            }
            sums.value += wanted / p;
            sums.square += factor * wanted * wanted;
            sums.mixed += factor * wanted * all;
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        (value, square)
    }

    /// Takes the nonzero sums with their cells, and resets the sums to zero.
    fn take(&mut self) -> Vec<(usize, Sums)> {
        let touched = std::mem::take(&mut self.touched);
        let sums = &mut self.sums;
        let all = touched.into_iter().map(|cell| cell as usize);
        all.map(|cell| (cell, std::mem::take(&mut sums[cell])))
            .collect()
    }

    /// Divides all bytes of a stratum in proportion to the samples' weights. Returns false if the weights are zero
    /// but the bytes are not.
    fn shares(&mut self, samples: &[usize], all: u64, group: usize, cells: &mut [Cell]) -> bool {
        let (value, square) = self.add(samples);
        let sums = self.take();
        if value <= 0.0 {
            return all == 0;
        }
        let factor = all as f64 / value;
        let shares: Vec<f64> = sums.iter().map(|(_, sums)| sums.value).collect();
        for ((cell, sums), bytes) in sums.into_iter().zip(apportion(all, &shares)) {
            let share = sums.value / value;
            let variance = sums.square - 2.0 * share * sums.mixed + share * share * square;
            // If one stack has all samples, the variance is 0. But other stacks may have chunks of which none was
            // sampled: about as many as one sample stands for.
            let unseen = share * share * square / samples.len() as f64;
            add(
                &mut cells[cell],
                group,
                bytes,
                sums.value * factor,
                (variance.max(0.0) + unseen) * factor * factor,
            );
        }
        true
    }

    /// Gives each cell the sum of its weights. The rest of the bytes of these classes becomes [`Rest`]s.
    fn weights(
        &mut self,
        samples: &[usize],
        classes: &[(usize, u64)],
        group: usize,
        divided: &mut Divided,
    ) {
        let all: u64 = classes.iter().map(|(_, bytes)| bytes).sum();
        let (value, _) = self.add(samples);
        let sums = self.take();
        let factor = match value > all as f64 {
            true => all as f64 / value,
            false => 1.0,
        };
        let mut by_class: Vec<(f64, f64)> = vec![(0.0, 0.0); classes.len()];
        for index in samples {
            let joined = &self.joined[*index];
            let class = (self.class_of)(joined);
            let at = classes.binary_search_by_key(&class, |(class, _)| *class);
            let of_all = (self.quantity.of_all)(&joined.held) as f64 / joined.placed.p;
            if let Ok(at) = at {
                by_class[at].0 += of_all;
                by_class[at].1 += of_all * of_all * (1.0 - joined.placed.p);
            }
        }
        let rests = classes.iter().zip(&by_class);
        let rests: Vec<f64> = rests
            .map(|((_, bytes), (value, _))| (*bytes as f64 - factor * value).max(0.0))
            .collect();
        // The rest of all classes together. Single classes may have a negative rest.
        let left = (all as f64 - factor * value).max(0.0);
        let scale = match rests.iter().sum::<f64>() {
            sum if sum > 0.0 => left / sum,
            _ => 0.0,
        };
        let mut shares: Vec<f64> = sums.iter().map(|(_, sums)| sums.value * factor).collect();
        shares.extend(rests.iter().map(|rest| rest * scale));
        let bytes = apportion(all, &shares);
        let (of_cells, of_rests) = bytes.split_at(sums.len());
        for ((cell, sums), bytes) in sums.iter().zip(of_cells) {
            let (value, variance) = (sums.value * factor, sums.square * factor * factor);
            add(&mut divided.cells[*cell], group, *bytes, value, variance);
        }
        for (((class, _), bytes), (_, variance)) in classes.iter().zip(of_rests).zip(by_class) {
            if *bytes > 0 {
                divided.rests.push(Rest {
                    group,
                    classes: *class..class + 1,
                    method: Method::Weights,
                    bytes: *bytes,
                    variance: variance * factor * factor,
                });
            }
        }
    }
}

fn add(cell: &mut Cell, group: usize, bytes: u64, value: f64, variance: f64) {
    let lost = group % 2;
    cell.bytes[lost] += bytes;
    cell.estimates[lost].value += value;
    cell.estimates[lost].variance += variance;
}
