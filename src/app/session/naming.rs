//! Starts the threads that look up function names.

use anyhow::{Context, Result};

use crate::app::config::Config;
use memprof_code::debuginfod::{self, FetchStatus, Limits, Servers};
use memprof_code::symbolize::Symbolizer;
use memprof_code::symbolize::debuginfod_cache::{CACHE_PATH, CacheDirs};
use memprof_sys::messages;

/// Starts the symbol thread and, if configured, the debuginfod thread. Prints which servers are used.
///
/// # Errors
/// A thread cannot be started.
pub(super) fn start(config: &Config) -> Result<(Symbolizer, Option<FetchStatus>)> {
    let cache = CacheDirs::of_environment();
    let (fetch, fetching) = match Servers::chosen(&config.debuginfod) {
        None => (None, None),
        Some(servers) => match cache.dirs.first() {
            None => {
                messages::print(&format!(
                    "debuginfod: nobody is asked, because there is no home directory for the files; set {CACHE_PATH}"
                ));
                (None, None)
            }
            Some(dir) => {
                messages::print(&servers.line());
                let started = debuginfod::start(servers, dir.clone(), Limits::of_environment());
                let (fetch, fetching) = started.context("cannot start the debuginfod thread")?;
                (Some(fetch), Some(fetching))
            }
        },
    };
    let symbolizer =
        Symbolizer::start_with(cache, fetch).context("cannot start the symbol thread")?;
    Ok((symbolizer.with_rust_hashes(config.rust_hashes), fetching))
}
