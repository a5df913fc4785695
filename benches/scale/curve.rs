//! Costs as functions of a size, and how fast they grow.

use anyhow::{Result, ensure};

use crate::support::pairs::{is_full, is_short};

/// The sizes of a curve: all of them in a full run, the smaller ones otherwise, and the smallest in a short run.
pub fn points<const N: usize>(all: [usize; N]) -> Vec<usize> {
    let n = match (is_full(), is_short()) {
        (true, _) => N,
        (false, true) => 1,
        (false, false) => N.min(4),
    };
    all[..n].to_vec()
}

/// Points from which a word for the growth is said.
const ENOUGH: usize = 4;

/// Several costs by the same size.
pub struct Curves {
    columns: Vec<&'static str>,
    rows: Vec<(f64, Vec<f64>)>,
}

impl Curves {
    /// The size is called `by`.
    pub fn new(by: &str, columns: &[&'static str]) -> Curves {
        let columns = columns.to_vec();
        println!("{}", row(by, columns.iter().copied()));
        let rows = Vec::new();
        Curves { columns, rows }
    }

    /// Adds a point, and prints it.
    pub fn add(&mut self, size: usize, costs: &[f64]) {
        assert_eq!(costs.len(), self.columns.len(), "a cost for each column");
        let texts: Vec<String> = costs.iter().map(|c| figures(*c)).collect();
        println!(
            "{}",
            row(&size.to_string(), texts.iter().map(String::as_str))
        );
        self.rows.push((size as f64, costs.to_vec()));
    }

    fn column(&self, n: usize) -> Vec<(f64, f64)> {
        self.rows.iter().map(|(size, c)| (*size, c[n])).collect()
    }

    /// Prints how each cost grows: its exponent over all points and between the last two, the cost of one more there, and a word.
    pub fn growth(&self) {
        let columns: Vec<_> = (0..self.columns.len()).map(|n| self.column(n)).collect();
        let line = |name: &str, text: fn(&[(f64, f64)]) -> String| {
            let texts: Vec<String> = columns.iter().map(|c| text(c)).collect();
            println!("{}", row(name, texts.iter().map(String::as_str)));
        };
        line("  exponent", |c| power(exponent(c)));
        line("  at the end", |c| power(exponent(last_two(c))));
        line("  one more", |c| one_more(c).map_or("-".into(), figures));
        if self.rows.len() >= ENOUGH {
            line("  grows", |c| word(exponent(last_two(c))).to_owned());
        }
    }
}

fn row<'a>(first: &str, rest: impl Iterator<Item = &'a str>) -> String {
    rest.fold(format!("  {first:<12}"), |line, text| {
        line + &format!("  {text:>18}")
    })
}

/// Three significant figures.
fn figures(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    match digits {
        5.. => format!("{value:.1e}"),
        _ => format!("{value:.*}", digits.max(0) as usize),
    }
}

fn power(exponent: Option<f64>) -> String {
    exponent.map_or("-".into(), |e| format!("{e:.2}"))
}

fn last_two(points: &[(f64, f64)]) -> &[(f64, f64)] {
    &points[points.len().saturating_sub(2)..]
}

/// The slope of the line through these points, by least squares on logarithms. Points without a logarithm are left out.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let positive = points.iter().filter(|(n, cost)| *n > 0.0 && *cost > 0.0);
    let logs: Vec<(f64, f64)> = positive.map(|(n, cost)| (n.ln(), cost.ln())).collect();
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = logs.iter().map(|p| (p.0 - x).powi(2)).sum();
    let both: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (logs.len() > 1 && spread > 0.0).then(|| both / spread)
}

/// The cost of one more of `n`, between the last two points.
fn one_more(points: &[(f64, f64)]) -> Option<f64> {
    let [(from, before), (to, after)] = last_two(points) else {
        return None;
    };
    Some((after - before) / (to - from))
}

/// `n log n` has an exponent of at most 1.2 at the sizes measured here.
fn word(exponent: Option<f64>) -> &'static str {
    match exponent {
        None => "-",
        Some(e) if e < 0.15 => "constant",
        Some(e) if e < 0.8 => "less than linear",
        Some(e) if e <= 1.2 => "linear",
        Some(_) => "MORE THAN LINEAR",
    }
}

/// Checks the exponents of curves whose growth is known.
pub fn check() -> Result<()> {
    type Known = (fn(f64) -> f64, f64, &'static str);
    const KNOWN: [Known; 5] = [
        (|_| 3.0, 0.0, "constant"),
        (|n| 2.0 * n.sqrt(), 0.5, "less than linear"),
        (|n| 0.1 * n, 1.0, "linear"),
        (|n| n * n.ln(), 1.14, "linear"),
        (|n| n * n, 2.0, "MORE THAN LINEAR"),
    ];
    for (cost, known, said) in KNOWN {
        let points = [100.0, 1_000.0, 10_000.0].map(|n| (n, cost(n)));
        let found = exponent(&points);
        ensure!(
            found.is_some_and(|e| (e - known).abs() < 0.04) && word(found) == said,
            "an exponent of {known} was computed as {found:?}, {}",
            word(found)
        );
    }
    Ok(())
}
