//! The proof of work of an identity: hashing its public key with a stamp gives a small number.

use std::fmt;

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};

/// The difficulty of a proof of work, in bits: 26 on mainnet, 0 in sandboxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target(f64);

impl Target {
    /// The target of mainnet.
    pub const MAINNET: Self = Self(26.0);

    /// A target between 0 and 256 bits; fractions are permitted.
    pub fn new(bits: f64) -> Option<Self> {
        (0.0..=256.0).contains(&bits).then_some(Self(bits))
    }

    /// The largest number that meets the target, in little-endian order.
    pub fn threshold(self) -> [u8; 32] {
        let whole = self.0.trunc() as u32;
        let fraction = self.0 - self.0.trunc();
        let mantissa = if fraction == 0.0 {
            (1 << 54) - 1
        } else {
            // Less than 2⁵⁴ even where a tiny fraction is lost in rounding.
            ((54.0 - fraction).exp2() as u64).min((1 << 54) - 1)
        };
        let mut threshold = [0; 32];
        if let Some(shift) = 202u32.checked_sub(whole).filter(|shift| *shift > 0) {
            let (byte, bit) = ((shift / 8) as usize, shift % 8);
            threshold[..byte].fill(0xff);
            let low = (u128::from(mantissa) << bit) | ((1 << bit) - 1);
            let rest = &mut threshold[byte..];
            let count = rest.len().min(16);
            rest[..count].copy_from_slice(&low.to_le_bytes()[..count]);
        } else {
            let low = mantissa >> (whole - 202);
            threshold[..8].copy_from_slice(&low.to_le_bytes());
        }
        threshold
    }

    /// True if the stamp is a proof of work for the public key.
    pub fn is_met(self, public_key: &[u8; 32], stamp: &[u8; 24]) -> bool {
        let hash = Blake2b::<U32>::new()
            .chain_update(public_key)
            .chain_update(stamp);
        let hash: [u8; 32] = hash.finalize().into();
        hash.iter().rev().le(self.threshold().iter().rev())
    }
}

/// Writes the bits: `26`, `26.5`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
