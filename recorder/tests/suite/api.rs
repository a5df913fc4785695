//! Tests of the HTTP API, over real connections.

pub mod client;
#[path = "../../../tests/common/document.rs"]
mod document;
mod documents;
mod explorer;
mod fixture;
mod limits;
mod new;
mod old;
mod old_connections;
mod old_records;
mod original;
mod others;
mod stream;
