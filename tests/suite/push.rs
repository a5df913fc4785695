//! Profiles pushed to stores: what arrives, and what happens if the store does not take it.
//!
//! Needs `go` (for `go tool pprof`); `live` also needs root and `cc`.

mod decode;
mod failures;
mod live;
mod synthetic;

use std::path::Path;
use std::time::Duration;

use crate::common::store::Store;
use ::memprof::export::push::{Credentials, Destination, Limits, Options};

/// Pushes to a store in this protocol.
fn options(protocol: &str, store: &Store) -> Options {
    Options {
        destination: Destination::parse(&format!("{protocol}+{}", store.url)).unwrap(),
        interval: Duration::from_secs(60),
        labels: Vec::new(),
        credentials: None,
        authorities: None,
    }
}

fn token(file: &Path) -> Option<Credentials> {
    Some(Credentials::Token(file.to_owned()))
}

/// Limits with which a test takes no minutes.
fn quick() -> Limits {
    Limits {
        request: Duration::from_secs(1),
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(200),
        ..Limits::default()
    }
}
