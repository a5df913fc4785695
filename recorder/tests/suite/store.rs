//! Tests of the store.

mod contract;

mod entries;

mod model;

mod search;
