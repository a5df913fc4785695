//! Estimates from samples, with their variance.

use std::ops::{AddAssign, SubAssign};

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
    /// The estimate from one sample, by the size and the weight of the sample in bytes.
    pub fn from_sample(size: u64, weight: u64) -> Estimate {
        let (size, weight) = (size as f64, weight as f64);
        let objects = weight / size;
        // `space_variance` is weight² (1 − p). A sampler may count a large allocation as several times its interval, which
        // can be less than its size. The variance is then negative, and must stay in the sum.
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

impl SubAssign for Estimate {
    fn sub_assign(&mut self, other: Estimate) {
        self.space -= other.space;
        self.objects -= other.objects;
        self.space_variance -= other.space_variance;
        self.objects_variance -= other.objects_variance;
    }
}
