//! memprof's collector and symbolizer, run in this process.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;

use tokio::sync::oneshot;

use ::memprof::app::cli::{self, Run};
use ::memprof::app::config::Config;
use ::memprof::app::session::command::Prepared;
use ::memprof::app::session::{Launch, start_collector, start_command};
use ::memprof::collect::CollectorHandle;
use ::memprof::collect::collector::Command;
use memprof_code::symbolize::Symbolizer;
use memprof_profile::symbol::Symbols;
use memprof_profile::{Amounts, Frame, FrameKind, Kind, Losses, Profile, Unobserved};
use memprof_sys::freeze::Freeze;
use memprof_sys::ids::Pid;
use memprof_sys::usage::Usage;

/// A running collector. It follows one command after the other.
pub struct Live {
    collecting: CollectorHandle,
    symbolizer: Symbolizer,
}

impl Live {
    pub fn start(follow_forks: bool, stacks: &str) -> Live {
        let started = start_collector(&config(follow_forks, stacks), None).unwrap();
        assert!(started.missing.is_empty(), "{:?}", started.missing);
        Live {
            collecting: started.collecting,
            symbolizer: Symbolizer::start().unwrap(),
        }
    }

    /// Starts a command under memprof.
    pub fn command(&self, argv: &[OsString]) -> Prepared {
        start_command(
            &self.collecting,
            Launch {
                argv,
                ..Launch::default()
            },
        )
        .unwrap()
    }

    /// A current report.
    pub fn report(&self) -> Report {
        let profile = self.profile().expect("a target");
        let frames: BTreeSet<Frame> = profile
            .samples
            .iter()
            .flat_map(|s| s.stack.frames.iter().copied())
            .filter(|f| matches!(f.kind(), FrameKind::Code(..)))
            .collect();
        let frames: Vec<Frame> = frames.into_iter().collect();
        let symbols = self.symbolizer.resolve(&frames, &profile.modules);
        Report { profile, symbols }
    }

    /// Number of events so far that the kernel did not report.
    pub fn skipped(&self) -> u64 {
        let profile = self.profile();
        let counters = profile.iter().flat_map(|p| &p.losses.counters);
        let skipped = counters.filter(|(what, _)| what == Losses::SKIPPED_PROGRAMS);
        skipped.map(|(_, count)| count).sum()
    }

    /// `None` before there is a target.
    fn profile(&self) -> Option<Arc<Profile>> {
        let (reply, answer) = oneshot::channel();
        let freeze = Freeze::No;
        self.collecting
            .send(Command::Report { freeze, reply })
            .unwrap();
        answer
            .blocking_recv()
            .unwrap()
            .ok()
            .map(|(_, profile)| profile)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.collecting.send(Command::Stop);
    }
}

fn config(follow_forks: bool, stacks: &str) -> Config {
    let mut line = vec!["memprof", "--stacks"];
    line.extend(stacks.split(' '));
    if follow_forks {
        line.push("--follow-forks");
    }
    line.extend(["--no-server", "--", "moves"]);
    match cli::parse_from(line.into_iter().map(Into::into)).unwrap() {
        Run::Profile(config) => *config,
        _ => unreachable!("a command line that profiles"),
    }
}

/// A profile and its symbols.
pub struct Report {
    pub profile: Arc<Profile>,
    symbols: Symbols,
}

impl Report {
    /// The part of one process.
    pub fn report_of(&self, pid: Pid) -> Report {
        Report {
            profile: Arc::new(self.profile.for_process(pid).expect("a followed process")),
            symbols: self.symbols.clone(),
        }
    }

    /// Bytes of this kind under every stack that goes through the function.
    pub fn under(&self, function: &str, kind: Kind) -> u64 {
        let through = |frame: &Frame| {
            let found = self.symbols.function(*frame);
            found.is_some_and(|f| f.name == function)
        };
        let samples = self.profile.samples.iter();
        samples
            .filter(|s| s.stack.frames.iter().any(through))
            .map(|s| kind.figure(&s.amounts))
            .sum()
    }

    /// Fails the test unless the stacks through the function hold so many bytes of this kind.
    #[track_caller]
    pub fn must_hold(&self, function: &str, kind: Kind, bytes: u64) {
        assert_eq!(self.under(function, kind), bytes, "{}", self.text());
    }

    /// Bytes of this kind without a stack, except those whose faults were not walked on purpose.
    pub fn unobserved(&self, kind: Kind) -> u64 {
        let rows = self.profile.not_observed.iter();
        let rows = rows.filter(|row| row.reason != Unobserved::NotWalked);
        rows.map(|row| kind.figure(&row.amounts)).sum()
    }

    /// All owners with their bytes, and what was lost, for failure messages. Rows that contain only file pages are omitted.
    pub fn text(&self) -> String {
        let mut out = format!("total: {}\n", short(&self.profile.total));
        for sample in &self.profile.samples {
            let names = sample.stack.frames.iter().map(|f| {
                let found = self.symbols.function(*f);
                found.map_or_else(|| "?".to_owned(), |f| f.name.clone())
            });
            let names: Vec<String> = names.take(6).collect();
            row(&mut out, &sample.amounts, &names.join(" < "));
        }
        for r in &self.profile.not_observed {
            let what = format!("{} ({})", r.mapping, r.reason.label());
            row(&mut out, &r.amounts, &what);
        }
        for (what, count) in self.profile.losses.lost() {
            out += &format!("lost: {count} {what}\n");
        }
        out
    }
}

fn row(out: &mut String, amounts: &Amounts, what: &str) {
    let other = Usage {
        file: 0,
        ..amounts.usage
    };
    if other != Usage::default() {
        *out += &format!("{}: {what}\n", short(amounts));
    }
}

fn short(amounts: &Amounts) -> String {
    let some = Kind::single().filter(|k| k.figure(amounts) > 0);
    let parts: Vec<String> = some
        .map(|k| format!("{} {} KiB", k.name(), k.figure(amounts) / 1024))
        .collect();
    parts.join(", ")
}
