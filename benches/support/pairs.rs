//! Pairs of figures, without and with memprof, and their table.

use anyhow::Result;

/// The limit of a ratio.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    AtMost(f64),
    /// No limit: the figure is for information.
    None,
}

/// Pairs of one figure, in the order of measurement.
pub struct Pairs {
    pub name: String,
    pub unit: &'static str,
    pub aim: Aim,
    taken: Vec<(f64, f64)>,
}

impl Pairs {
    pub fn new(name: impl Into<String>, unit: &'static str, aim: Aim) -> Pairs {
        Pairs {
            name: name.into(),
            unit,
            aim,
            taken: Vec::new(),
        }
    }

    pub fn add(&mut self, without: f64, with: f64) {
        self.taken.push((without, with));
    }

    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.taken.iter().map(|(a, b)| b / a).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// One row of the table.
    pub fn row(&self) -> String {
        let ratios = self.ratios();
        let (Some(low), Some(high)) = (ratios.first(), ratios.last()) else {
            return format!("{}: no figures", self.name);
        };
        let middle = median(ratios.clone());
        let without = median(self.taken.iter().map(|(a, _)| *a).collect());
        let with = median(self.taken.iter().map(|(_, b)| *b).collect());
        format!(
            "{:<44} {without:>9.1} {with:>9.1} {:<12} {middle:>5.2}  {low:>5.2} to {high:<5.2} {:>2}  {}",
            self.name,
            self.unit,
            ratios.len(),
            verdict(middle, self.aim)
        )
    }
}

pub const HEAD: &str = "figure                                         without      with              ratio   min to max  pairs  aim";

/// `aim ≤ 1.65: met`.
pub fn verdict(value: f64, aim: Aim) -> String {
    match aim {
        Aim::None => String::new(),
        Aim::AtMost(most) if value <= most => format!("aim ≤ {most}: met"),
        Aim::AtMost(most) => format!("aim ≤ {most}: NOT met"),
    }
}

/// The middle value; of an even number of values the mean of the two in the middle. 0 for none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[half],
        _ => (values[half - 1] + values[half]) / 2.0,
    }
}

/// Measures `n` pairs alternately: without, with, without, with, …
pub fn interleave(n: usize, mut pair: impl FnMut() -> Result<()>) -> Result<()> {
    (0..n).try_for_each(|_| pair())
}
