//! Captured bytes are those that processes exchanged, and gaps are as long as is said.

mod calls;
pub mod common;
mod methods;
mod places;
mod refused;
mod seen;
mod times;
