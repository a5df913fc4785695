//! HTTP.

pub mod pcapng;
