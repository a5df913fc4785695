//! Tests of the store.

mod contract;
mod crash;
mod damage;
mod details;
mod entries;
mod load;
mod model;
mod retention;
mod search;
