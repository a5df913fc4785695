//! Captured bytes are those that processes exchanged, and gaps are as long as is said.

#[path = "capture/calls.rs"]
mod calls;
#[path = "capture/common.rs"]
mod common;
#[path = "capture/methods.rs"]
mod methods;
#[path = "capture/places.rs"]
mod places;
#[path = "capture/times.rs"]
mod times;
