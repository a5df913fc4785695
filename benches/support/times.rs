//! Times of a repeated measurement, and their row.

use super::pairs::{Aim, median, verdict};

pub const HEAD: &str = "time                                                   median   min to max            runs  aim";

/// Times in milliseconds.
pub struct Times {
    pub name: &'static str,
    pub aim: Aim,
    taken: Vec<f64>,
}

impl Times {
    pub fn new(name: &'static str, aim: Aim) -> Times {
        let taken = Vec::new();
        Times { name, aim, taken }
    }

    pub fn add(&mut self, milliseconds: f64) {
        self.taken.push(milliseconds);
    }

    pub fn row(&self) -> String {
        let mut taken = self.taken.clone();
        taken.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (taken.first(), taken.last()) else {
            return format!("{}: no figures", self.name);
        };
        let middle = median(taken.clone());
        format!(
            "{:<50} {middle:>7.0} ms  {low:>6.0} to {high:<6.0} ms  {:>4}  {}",
            self.name,
            taken.len(),
            verdict(middle, self.aim)
        )
    }
}
