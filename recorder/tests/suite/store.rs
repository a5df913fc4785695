//! Tests of the store.

mod contract;
mod entries;
