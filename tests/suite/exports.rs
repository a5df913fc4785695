//! Every export format, read by an independent reader.
//!
//! `speedscope-schema.json` is the schema of speedscope 1.25.0 (MIT, Jamie Wong).
//!
//! Needs `go` (for `go tool pprof`) and `python3`; `live` also needs root and `cc`.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod live;
mod readers;
mod synthetic;
