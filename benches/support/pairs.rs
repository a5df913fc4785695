//! Pairs of figures, without and with memprof, and their table.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;

/// The limit of a ratio.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    AtMost(f64),
    /// No limit: the figure is for information.
    None,
}

/// The figures without memprof of a quiet machine differ by at most this share of their median.
const QUIET: f64 = 0.10;

/// How often a figure is taken again while the machine is not quiet.
const RETAKES: usize = 2;

/// An aim was missed on a quiet machine.
static MISSED: AtomicBool = AtomicBool::new(false);

/// Pairs of one figure, in the order of measurement.
pub struct Pairs {
    pub name: String,
    pub unit: &'static str,
    pub aim: Aim,
    taken: Vec<(f64, f64)>,
    /// memprof's own CPU time in each pair, in ms, if it was measured.
    own: Vec<f64>,
}

impl Pairs {
    pub fn new(name: impl Into<String>, unit: &'static str, aim: Aim) -> Pairs {
        Pairs {
            name: name.into(),
            unit,
            aim,
            taken: Vec::new(),
            own: Vec::new(),
        }
    }

    pub fn add(&mut self, without: f64, with: f64) {
        self.taken.push((without, with));
    }

    /// Adds memprof's own CPU time in a pair.
    pub fn add_own(&mut self, time: Duration) {
        self.own.push(time.as_secs_f64() * 1e3);
    }

    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.taken.iter().map(|(a, b)| b / a).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// The median of the pairs' ratios.
    pub fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    /// By which share of their median the figures without memprof differ: the noise of this machine.
    fn noise(&self) -> f64 {
        let base = || self.taken.iter().map(|(without, _)| *without);
        let low = base().fold(f64::INFINITY, f64::min);
        let high = base().fold(0.0, f64::max);
        (high - low) / median(base().collect())
    }

    /// Takes `n` pairs alternately: without, with, without, with, … In a full run, they are taken again while the
    /// machine is too noisy for the first figure.
    pub fn settle<const N: usize>(
        figures: &mut [Pairs; N],
        n: usize,
        mut pair: impl FnMut(&mut [Pairs; N]) -> Result<()>,
    ) -> Result<()> {
        let retakes = if is_full() { RETAKES } else { 0 };
        for attempt in 0..=retakes {
            for figure in figures.iter_mut() {
                figure.taken.clear();
                figure.own.clear();
            }
            (0..n).try_for_each(|_| pair(figures))?;
            let noise = figures[0].noise();
            if noise <= QUIET {
                break;
            }
            if attempt < retakes {
                let (name, noise) = (&figures[0].name, noise * 100.0);
                println!("  {name}: taken again, the base differs by {noise:.0} %");
            }
        }
        Ok(())
    }

    /// The median of the figures without memprof.
    pub fn base(&self) -> f64 {
        median(self.taken.iter().map(|(without, _)| *without).collect())
    }

    /// The median of what memprof adds.
    pub fn added(&self) -> f64 {
        median(self.taken.iter().map(|(a, b)| b - a).collect())
    }

    /// One row of the table.
    pub fn row(&self) -> String {
        let ratios = self.ratios();
        let (Some(low), Some(high)) = (ratios.first(), ratios.last()) else {
            return format!("{}: no figures", self.name);
        };
        let middle = self.ratio();
        let without = self.base();
        let added = self.added();
        let noise = self.noise();
        let mut notes = verdict(middle, self.aim);
        if noise > QUIET && self.taken.len() > 1 {
            notes += " (NOISY)";
        } else if matches!(self.aim, Aim::AtMost(most) if middle > most) {
            MISSED.store(true, Relaxed);
        }
        if !self.own.is_empty() {
            notes += &format!("  memprof itself: {:.0} ms", median(self.own.clone()));
        }
        format!(
            "{:<44} {without:>9.1} {added:>+9.1} {:<12} {middle:>5.2}  {low:>5.2} to {high:<5.2} {:>2} {:>5.1} % {:>5}  {notes}",
            self.name,
            self.unit,
            ratios.len(),
            noise * 100.0,
            load(),
        )
    }
}

/// A number of pairs or rounds: 1 in a short run, which tries each benchmark (`MEMPROF_BENCH_SHORT`).
pub fn number(usual: usize, full: usize) -> usize {
    match (is_full(), is_short()) {
        (true, _) => full,
        (false, true) => 1,
        (false, false) => usual,
    }
}

/// Whether each benchmark is only tried: `MEMPROF_BENCH_SHORT`, as in `./run-tests bench`.
pub fn is_short() -> bool {
    std::env::var_os("MEMPROF_BENCH_SHORT").is_some()
}

/// Whether the benchmarks take the time that they need: `MEMPROF_BENCH_FULL`.
pub fn is_full() -> bool {
    ["MEMPROF_BENCH_FULL", STRICT]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// Environment variable: a full run that fails if an aim is missed on a quiet machine.
const STRICT: &str = "MEMPROF_BENCH_STRICT";

/// Whether this run fails because an aim was missed.
pub fn fails() -> bool {
    std::env::var_os(STRICT).is_some() && MISSED.load(Relaxed)
}

/// The load average of the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// `base`: median without memprof; `added`: median of the differences; `noise`: how far the base differs.
pub const HEAD: &str = "figure                                            base     added              ratio   min to max  pairs noise  load  aim";

/// `aim ≤ 1.65: met`.
pub fn verdict(value: f64, aim: Aim) -> String {
    match aim {
        Aim::None => String::new(),
        Aim::AtMost(most) if value <= most => format!("aim ≤ {most}: met"),
        Aim::AtMost(most) => format!("aim ≤ {most}: NOT met"),
    }
}

/// Like `verdict`, for a single figure: one that misses its aim fails a strict run.
pub fn check(value: f64, aim: Aim) -> String {
    if matches!(aim, Aim::AtMost(most) if value > most) {
        MISSED.store(true, Relaxed);
    }
    verdict(value, aim)
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
