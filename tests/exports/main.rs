//! Every export format, read by a reader that is not memprof's own.
//!
//! `speedscope-schema.json` is the schema that speedscope 1.25.0 carries (MIT, Jamie Wong).
//!
//! Needs `go` (its `go tool pprof`) and `python3`; `live` needs root and `cc` besides.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod live;
mod made;
mod readers;
