//! Tests of the store.

mod contract;
mod crash;
mod damage;
mod details;
mod directory;
mod entries;
mod lists;
mod load;
mod model;
mod model_logs;
mod retention;
mod search;
mod summary;
mod unwritable;
