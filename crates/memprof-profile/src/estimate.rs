//! What samples stand for, with its variance.

use std::ops::AddAssign;

/// Bytes and allocations, estimated from samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Bytes.
    pub space: f64,
    /// Allocations.
    pub objects: f64,
    /// The variance of `space`, in bytes².
    pub space_variance: f64,
    /// The variance of `objects`.
    pub objects_variance: f64,
}

impl Estimate {
    /// What one sample stands for: its size and weight in bytes.
    pub fn of(size: u64, weight: u64) -> Estimate {
        let (size, weight) = (size as f64, weight as f64);
        let objects = weight / size;
        // That is weight² (1 − p). A sampler may count a large allocation as several times its interval, and so as less
        // than its size: a variance below 0, which belongs into the sum.
        Estimate {
            space: weight,
            objects,
            space_variance: weight * (weight - size),
            objects_variance: objects * (objects - 1.0),
        }
    }
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Estimate) {
        self.space += other.space;
        self.objects += other.objects;
        self.space_variance += other.space_variance;
        self.objects_variance += other.objects_variance;
    }
}
