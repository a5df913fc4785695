//! The `memprof` command.

use std::io::{self, Write};
use std::process::ExitCode;

use memprof::app::cli::{self, Run};
use memprof::app::{advise, capability, heap, maps, session};
use memprof_heap::attach;
use memprof_sys::freeze::guard;
use memprof_sys::{allocator, limits, target_file};

fn main() -> ExitCode {
    allocator::keep_little();
    limits::survive_file_sizes();
    let run = cli::parse();
    if run.reads_targets()
        && let Err(e) = target_file::start()
    {
        eprintln!("memprof: error: cannot start the process that reads the files of targets: {e}");
        return ExitCode::FAILURE;
    }
    let done = match run {
        Run::Profile(config) => session::run(&config),
        Run::Advise(target) => advise::run(&target).and_then(|text| print(&text, 0)),
        Run::Maps(config) => maps::run(&config).and_then(|text| print(&text, 0)),
        Run::Heap(config) => heap::run(&config).and_then(|(text, status)| print(&text, status)),
        Run::AttachHeap(config) => attach::run(&config).and_then(|text| print(&text, 0)),
        Run::ForkGuard => guard::run().map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Run::Open(config) => session::open(config),
        Run::Diff(config) => session::diff(&config),
        Run::Growth(config) => session::growth(&config),
        Run::Doctor => {
            let (text, status) = capability::doctor(&capability::examine());
            print(text.as_bytes(), status)
        }
        Run::Print(text) => print(&text, 0),
    };
    let status = done.unwrap_or_else(|e| {
        let _ = writeln!(io::stderr(), "memprof: error: {e:#}");
        ExitCode::from(session::failure::exit_status(&e))
    });
    target_file::stop();
    status
}

fn print(text: &[u8], status: u8) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(e).context("cannot write to stdout"))
        }
        _ => Ok(ExitCode::from(status)),
    }
}
