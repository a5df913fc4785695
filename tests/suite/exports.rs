//! Every export format, read by an independent reader.
//!
//! `speedscope-schema.json` is the schema of speedscope 1.25.0 (MIT, Jamie Wong).
//!
//! Needs `go` (for `go tool pprof`) and `python3`; `live` also needs root and `cc`.

mod hostile;
mod live;
pub(crate) mod readers;
mod synthetic;
