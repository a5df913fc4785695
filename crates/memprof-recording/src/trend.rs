//! Whether a figure grows, how fast, and how certainly: a straight line through its means over equal intervals.

/// Number of intervals into which a span is divided.
pub const INTERVALS: usize = 40;
/// Minimum number of intervals of a line.
const MIN_INTERVALS: usize = 6;

/// How a figure grew over a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Growing until the end: what a leak does.
    Steady,
    /// It grew, and stopped a sixth of the span before the end or earlier: a cache that is full, for example.
    Stopped,
    /// It grew within two intervals.
    Jump,
}

impl Shape {
    /// A lower-case word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Steady => "steady",
            Shape::Stopped => "stopped",
            Shape::Jump => "jump",
        }
    }
}

/// The growth of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Trend {
    /// Slope of the line, in bytes per second.
    pub slope: f64,
    /// Standard error of the slope, in bytes per second. It allows for the likeness of neighbouring intervals.
    pub error: f64,
    /// How it grew; `None` if no growth is certain.
    pub shape: Option<Shape>,
    /// Share of the steps from one interval to the next that went upwards, from 0 to 1.
    pub rises: f64,
    /// The interval in which it began to grow.
    pub since: usize,
}

impl Trend {
    /// The slope that is certain, in bytes per second: two standard errors below the slope. Negative if growth is not certain.
    pub fn certain(&self) -> f64 {
        self.slope - 2.0 * self.error
    }
}

/// A straight line through values at equal distances.
struct Line {
    /// Per interval.
    slope: f64,
    error: f64,
    /// Share of the variance that it explains, from 0 to 1.
    explains: f64,
}

/// Fits a line by least squares. Residuals of neighbouring intervals are alike, because figures change rarely: the error
/// counts as many independent intervals as there would be by their correlation (n (1 − r) / (1 + r)), and allows for their
/// small number, so that two errors cover the truth in 95 of 100 series.
fn fit(values: &[f64]) -> Option<Line> {
    let n = values.len() as f64;
    if values.len() < MIN_INTERVALS {
        return None;
    }
    let (middle, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let from_middle = |at: usize| at as f64 - middle;
    let spread: f64 = (0..values.len()).map(|at| from_middle(at).powi(2)).sum();
    let product = |(at, value): (usize, &f64)| from_middle(at) * (value - mean);
    let slope = values.iter().enumerate().map(product).sum::<f64>() / spread;
    let residual = |(at, value): (usize, &f64)| value - mean - slope * from_middle(at);
    let residuals: Vec<f64> = values.iter().enumerate().map(residual).collect();
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    let alike: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    // Residuals from a line that was fitted to them are less alike than those from the true line.
    let correlation = match squares > 0.0 {
        true => ((alike / squares * n + 5.0) / (n - 4.0)).clamp(0.0, 0.95),
        false => 0.0,
    };
    let freedom = (n * (1.0 - correlation) / (1.0 + correlation) - 2.0).max(2.0);
    // Student's t of 95 %, by the first terms of its series, relative to the 2 of many degrees of freedom.
    let few = (1.96 + 2.372 / freedom + 2.823 / freedom.powi(2) + 2.556 / freedom.powi(3)) / 2.0;
    let error = few * (squares / freedom / spread).sqrt();
    let variance: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let explains = 1.0 - squares / variance.max(f64::MIN_POSITIVE);
    Some(Line {
        slope,
        error,
        explains,
    })
}

/// A level, a straight rise from one interval to another, and a level again.
struct Ramp {
    /// The last interval of the first level.
    from: usize,
    /// The first interval of the second level.
    to: usize,
    rise: f64,
    /// Share of the variance that it explains, from 0 to 1.
    explains: f64,
}

/// The ramp that fits best.
fn ramp(values: &[f64]) -> Ramp {
    let n = values.len();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let all = mean(values);
    let variance: f64 = values.iter().map(|value| (value - all).powi(2)).sum();
    let mut best = Ramp {
        from: 0,
        to: n - 1,
        rise: 0.0,
        explains: 0.0,
    };
    for from in 0..n - 1 {
        let low = mean(&values[..=from]);
        for to in from + 1..n {
            let high = mean(&values[to..]);
            let slope = (high - low) / (to - from) as f64;
            let level = |at: usize| low + slope * at.clamp(from, to).saturating_sub(from) as f64;
            let residual = |(at, value): (usize, &f64)| (value - level(at)).powi(2);
            let left: f64 = values.iter().enumerate().map(residual).sum();
            let explains = 1.0 - left / variance;
            if explains > best.explains {
                best = Ramp {
                    from,
                    to,
                    rise: high - low,
                    explains,
                };
            }
        }
    }
    best
}

/// A ramp is what happened if it explains this share of the variance, and leaves at most half of what a straight line leaves.
const EXPLAINS: f64 = 0.9;

/// The trend of a figure, by its mean in each interval. `interval` is their length in seconds. `None` if there are too few
/// intervals.
pub(crate) fn trend(means: &[f64], interval: f64) -> Option<Trend> {
    let n = means.len();
    let whole = fit(means)?;
    let ramp = ramp(means);
    let is_ramp = ramp.rise > 0.0
        && ramp.explains >= EXPLAINS
        && 1.0 - ramp.explains <= (1.0 - whole.explains) / 2.0;
    // What began to grow later is a line from there on.
    let late = is_ramp && ramp.from > 0 && n - ramp.from >= n / 4;
    let line = late
        .then(|| fit(&means[ramp.from..]))
        .flatten()
        .unwrap_or(whole);
    let steps = means.windows(2).map(|pair| pair[1] - pair[0]);
    let up = steps.filter(|step| *step > 0.0).count();
    let shape = match () {
        // What was there from the first interval on did not grow in the span.
        () if is_ramp && ramp.to <= 2 => None,
        () if is_ramp && ramp.to - ramp.from <= 2 => Some(Shape::Jump),
        () if is_ramp && n - ramp.to >= n / 6 => Some(Shape::Stopped),
        () if line.slope > 2.0 * line.error => Some(Shape::Steady),
        () => None,
    };
    Some(Trend {
        slope: line.slope / interval,
        error: line.error / interval,
        shape,
        rises: up as f64 / (n - 1) as f64,
        since: if is_ramp { ramp.from } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A figure for each interval, with noise.
    fn series(of: impl Fn(f64) -> f64, noise: f64) -> Vec<f64> {
        let mut seed = 7u64;
        let mut random = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as f64 / f64::from(1u32 << 31) - 0.5
        };
        let at = |n: usize| n as f64 / INTERVALS as f64;
        (0..INTERVALS)
            .map(|n| of(at(n)) + noise * random())
            .collect()
    }

    #[test]
    fn shapes() {
        let mib = f64::from(1 << 20);
        let teeth = |t: f64| (t * 7.0).fract();
        for (what, values, wanted) in [
            (
                "a straight line",
                series(|t| 100.0 * mib * t, 0.0),
                Some(Shape::Steady),
            ),
            (
                "a line in noise",
                series(|t| 100.0 * mib * t, 30.0 * mib),
                Some(Shape::Steady),
            ),
            (
                "a slow leak under a large base",
                series(|t| 1000.0 * mib + mib * t, 0.3 * mib),
                Some(Shape::Steady),
            ),
            (
                "a leak in stairs",
                series(|t| mib * (t * 9.0).floor(), 0.0),
                Some(Shape::Steady),
            ),
            (
                "a leak under saw teeth",
                series(|t| mib * (teeth(t) + 6.0 * t), 0.0),
                Some(Shape::Steady),
            ),
            (
                "a leak that begins late",
                series(|t| mib * (t - 0.5).max(0.0), 0.0),
                Some(Shape::Steady),
            ),
            (
                "a cache that fills and stops",
                series(|t| mib * (t * 3.0).min(1.0), 0.01 * mib),
                Some(Shape::Stopped),
            ),
            (
                "a jump",
                series(|t| if t < 0.4 { 0.0 } else { mib }, 0.01 * mib),
                Some(Shape::Jump),
            ),
            (
                "there from the start",
                series(|t| if t < 0.04 { t * mib } else { mib }, 0.0),
                None,
            ),
            ("constant", series(|_| mib, 0.0), None),
            ("noise", series(|_| mib, mib), None),
            ("saw teeth", series(|t| mib * teeth(t), 0.0), None),
            (
                "a hump",
                series(|t| mib * (1.0 - (2.0 * t - 1.0).abs()), 0.0),
                None,
            ),
            ("shrinking", series(|t| mib * (1.0 - t), 0.0), None),
        ] {
            let found = trend(&values, 60.0).unwrap();
            assert_eq!(found.shape, wanted, "{what}: {found:?}");
        }
    }

    #[test]
    fn the_slope_is_that_of_the_line() {
        let found = trend(&series(|t| 4000.0 * t, 0.0), 2.0).unwrap();
        // 4,000 bytes in 40 intervals of 2 s.
        assert!((found.slope - 50.0).abs() < 1e-6, "{found:?}");
        assert!(found.error < 1e-6, "{found:?}");
        assert!((found.rises - 1.0).abs() < 1e-9, "{found:?}");
        let late = trend(&series(|t| (t - 0.5).max(0.0), 0.0), 2.0).unwrap();
        assert!((19..=21).contains(&late.since), "{late:?}");
    }

    #[test]
    fn few_intervals_have_no_trend() {
        assert_eq!(trend(&[1.0, 2.0, 3.0, 4.0, 5.0], 1.0), None);
    }

    /// The error covers the true slope in 95 of 100 series, also where neighbouring intervals are alike.
    #[test]
    fn errors_cover_the_truth() {
        let mut random = Random(1);
        for memory in [0.0, 0.5, 0.8] {
            let mut covered = 0;
            for _ in 0..1000 {
                let mut wander = 0.0;
                let values: Vec<f64> = (0..INTERVALS)
                    .map(|n| {
                        wander = memory * wander + random.fraction() - 0.5;
                        3.0 * n as f64 + 20.0 * wander
                    })
                    .collect();
                let found = trend(&values, 1.0).unwrap();
                covered += u32::from((found.slope - 3.0).abs() <= 2.0 * found.error);
            }
            println!("correlation {memory}: {covered} of 1000");
            assert!(covered >= 950, "correlation {memory}: {covered}");
        }
    }
}
