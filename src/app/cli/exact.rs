//! The flags of an exact window: `--heap=exact` and its options.

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;
use super::profile::ProfileArgs;
use super::values::HeapHow;
use memprof_code::allocators::ExactOptions;

/// The calls to count with `--heap=exact`; `None` without it.
///
/// # Errors
/// A required flag is missing, or a flag does not apply.
pub(super) fn exact_of(args: &ProfileArgs) -> Result<Option<ExactOptions>, clap::Error> {
    let error = |kind, message: &str| Err(Cli::command().error(kind, format!("{message}\n")));
    let all = ExactOptions::default();
    let options = ExactOptions {
        min_size: args.min_size.unwrap_or(all.min_size),
        max_size: args.max_size.unwrap_or(all.max_size),
        every: args.every.unwrap_or(all.every),
        skip: args.skip.unwrap_or(all.skip),
    };
    if args.heap != Some(HeapHow::Exact) {
        if options != all || args.sizes.is_some() {
            let message =
                "--min-size, --max-size, --every, --skip and --sizes require --heap=exact";
            return error(ErrorKind::MissingRequiredArgument, message);
        }
        return Ok(None);
    }
    if args.duration.is_none() {
        let message = "--heap=exact requires --duration SECS: it slows the target down, so it must end by itself";
        return error(ErrorKind::MissingRequiredArgument, message);
    }
    if options.min_size > options.max_size {
        let message = "--min-size is larger than --max-size: no allocation would be counted";
        return error(ErrorKind::ArgumentConflict, message);
    }
    if args.filter.is_some() || args.heap_interval.is_some() || !args.heap_provider.is_empty() {
        let message = "--filter, --heap-interval and --heap-provider are for sampled allocations: with --heap=exact there is \
                       none; --min-size and --max-size filter calls by their size";
        return error(ErrorKind::ArgumentConflict, message);
    }
    Ok(Some(options))
}
