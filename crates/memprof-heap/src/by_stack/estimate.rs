//! The estimator. Each sampled chunk i stands for 1/pᵢ chunks, so that Σ yᵢ/pᵢ estimates, without bias, the sum of any
//! figure y of chunks (Horvitz and Thompson); its variance is estimated by Σ yᵢ² (1 − pᵢ)/pᵢ².
//!
//! The exact sum Y of a stratum is known. If each of its chunks could be sampled, a stack's part is Y times its share of the
//! samples' weights, a ratio: its bias is of the order of one sample's part, its variance that of the linearised ratio,
//! Σ (1 − pᵢ)/pᵢ² (zᵢ − q yᵢ)² (Y/Ŷ)², where z is y for the stack's own chunks and 0 for others, and q its share.
//!
//! Otherwise a stack's part is its sum of weights, and the rest of Y was not sampled. The strata of a group have one rest (those
//! of chunks that are always sampled have their own): where
//! chance makes the samples of one stratum stand for more than its bytes, the rest of the others is smaller. Cutting each
//! stratum at its own bytes would make all estimates too small. Only if the samples of the whole group stand for more than its
//! bytes, all are reduced alike.

use super::holdings::{Class, Held, Holdings, Joined};
use super::round::apportion;
use super::strata::{Classing, Method, Stratum};

/// What is estimated.
pub(super) struct Quantity {
    /// The figure of which the exact sums are known.
    pub of_all: fn(&Held) -> u64,
    /// That which is estimated: the same, or a part of it.
    pub wanted: fn(&Joined) -> f64,
}

/// An estimate with its variance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    pub value: f64,
    pub variance: f64,
}

/// Those of a cell, reachable and not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// In whole bytes: with the rests they add up to the exact sums, if the whole figure is wanted.
    pub bytes: [u64; 2],
    pub estimates: [Estimate; 2],
}

/// Bytes of a stratum or class that are no cell's.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub group: usize,
    pub classes: std::ops::Range<usize>,
    pub method: Method,
    pub bytes: u64,
    /// Of an estimate; 0 of what is exact.
    pub variance: f64,
}

/// All of one quantity.
pub(super) struct Divided {
    pub cells: Vec<Cell>,
    pub rests: Vec<Rest>,
}

/// Sums over samples of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Σ z/p
    value: f64,
    /// Σ (1 − p)/p² z², and with z y instead
    square: f64,
    mixed: f64,
}

/// Divides a quantity among cells; `cell_of` has the cell of each sample.
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
    /// By cell; all zero but those in `touched`.
    sums: Vec<Sums>,
    touched: Vec<u32>,
}

impl Adding<'_> {
    /// Adds samples to their cells' sums. Returns the sums of all of them of the whole figure: value and square.
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

    /// The cells with sums, which are zero again then.
    fn take(&mut self) -> Vec<(usize, Sums)> {
        let touched = std::mem::take(&mut self.touched);
        let sums = &mut self.sums;
        let all = touched.into_iter().map(|cell| cell as usize);
        all.map(|cell| (cell, std::mem::take(&mut sums[cell])))
            .collect()
    }

    /// Divides all bytes of a stratum by the samples' shares. False if the samples have none.
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
            // Where one stack has all samples, that is 0. But chunks of other stacks may be there of which none was sampled:
            // about as many as one sample stands for.
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

    /// Gives each cell its weights; the rest of the bytes of all these classes stays.
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
        // Those of all classes together; some classes may have a negative one.
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
