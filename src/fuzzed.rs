//! Root of fuzz/'s library, which is also named memprof: the four lower wings, which read untrusted files and memory. memprof itself
//! uses `lib.rs`.

#![allow(dead_code, unused_imports, reason = "the upper wings use the rest")]

pub mod code;
pub mod heap;
pub mod profile;
pub mod sys;
