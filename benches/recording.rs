//! What a recording costs memprof, and how fast one of a week opens and shows a moment.
//!
//! ```text
//! cargo bench --bench recording [-- NAME…]      (as root)
//! ```
//!
//! `cpu`: two memprofs follow the same busy program at the same time, one with `--record`, and their CPU times are compared.
//!
//! `week`: the reports of a recording, again and again with times that a simulated clock gives, make a recording of a week with a
//! report a second; in a short run, of five minutes. `MEMPROF_BENCH_RECORDING=FILE` names the recording whose reports are taken;
//! otherwise it is that of ten seconds of the busy program.

mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result};

use memprof_code::layout;
use memprof_profile::Report;
use memprof_recording::{At, Options, Recorder, Recording, RunInfo};
use support::pairs::{Aim, HEAD, Pairs, is_short, median, number};
use support::profiler::Profiler;
use support::workload::compile;
use support::{Bench, Measurement, milliseconds};

const MEASUREMENTS: [Measurement; 2] = [("cpu", own_time), ("week", week)];
/// The reports of the week are a second apart.
const WEEK: u64 = 7 * 86_400;
const SHORT: u64 = 300;
/// Number of random moments that are shown.
const SHOWN: u64 = 1000;

fn main() -> ExitCode {
    Bench::main(Bench::prepare("bench-workloads", compile), &MEASUREMENTS)
}

/// Records the busy program, beside a memprof that does not.
fn recorded(bench: &Bench, path: &Path, pairs: usize, span: Duration) -> Result<Pairs> {
    let mut workload = bench.start("stacks", &["--busy"])?;
    let plain = Profiler::attach_alone(workload.pid(), &[])?;
    let path = path.to_str().context("not UTF-8")?;
    let recording = Profiler::attach_alone(workload.pid(), &["--record", path])?;
    workload.go()?;
    let mut figures = [Pairs::new(
        "memprof's CPU time, without and with --record",
        "ms",
        Aim::AtMost(1.1),
    )];
    let both = || Ok::<_, anyhow::Error>((plain.cpu_time()?, recording.cpu_time()?));
    Pairs::settle(&mut figures, pairs, |figures| {
        let before = both()?;
        std::thread::sleep(span);
        let after = both()?;
        let used = |a: Duration, b: Duration| (b - a).as_secs_f64() * 1000.0;
        figures[0].add(used(before.0, after.0), used(before.1, after.1));
        Ok(())
    })?;
    workload.end()?;
    recording.end()?;
    plain.end()?;
    let [figure] = figures;
    Ok(figure)
}

fn own_time(bench: &Bench) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let span = Duration::from_secs(if is_short() { 2 } else { 10 });
    let pairs = recorded(bench, &dir.path().join("r.db"), number(7, 7), span)?;
    println!("{HEAD}\n{}", pairs.row());
    Ok(())
}

fn week(bench: &Bench) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let source = match std::env::var_os("MEMPROF_BENCH_RECORDING") {
        Some(path) => PathBuf::from(path),
        None => {
            let path = dir.path().join("source.db");
            recorded(bench, &path, 1, Duration::from_secs(10))?;
            path
        }
    };
    let source = Recording::open(&source)?;
    let reports = source.moments()?.into_iter().take(4096);
    let reports = reports.map(|moment| Ok(source.state(moment.id)?.into()));
    let reports: Vec<Report> = reports.collect::<Result<_>>()?;
    let path = dir.path().join("week.db");
    let run = RunInfo::default();
    let mut recorder = Recorder::open(&path, Options::default(), &run, layout::of_module)?;
    let (seconds, began) = (if is_short() { SHORT } else { WEEK }, Instant::now());
    for second in 0..seconds {
        let mut report = reports[second as usize % reports.len()].clone();
        let profile = Arc::make_mut(&mut report.profile);
        profile.taken = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + second);
        profile.taken_ns = 1 + second * 1_000_000_000;
        report.sequence = second + 1;
        recorder.record(&report)?;
    }
    recorder.finish()?;
    let took = began.elapsed().as_secs_f64() * 1e6 / seconds as f64;
    let size = std::fs::metadata(&path)?.len() as f64 / f64::from(1 << 20);
    let open = milliseconds(|| Recording::open(&path).map(drop).map_err(Into::into))?;
    let recording = Recording::open(&path)?;
    let end = recording.find(&At::End)?;
    let moments = recording.moments()?;
    println!(
        "{seconds} reports, {} of them different: {took:.0} µs each; {} moments are left, {size:.1} MiB; it opens in {open:.0} ms",
        reports.len(),
        moments.len()
    );
    // Steps through all moments in an order that looks random: their number and the step have no common divisor, nearly always.
    let mut times = Vec::new();
    let tries = if is_short() { SHOWN / 10 } else { SHOWN };
    for shown in 0..tries {
        let moment = &moments[(shown * 7919 % moments.len() as u64) as usize];
        times.push(milliseconds(|| {
            recording.state(moment.id).map(drop).map_err(Into::into)
        })?);
    }
    let most = times.iter().copied().fold(0.0, f64::max);
    let totals = milliseconds(|| {
        let all = recording.totals([0, u64::MAX], 4000);
        all.map(drop).map_err(Into::into)
    })?;
    let growth = milliseconds(|| {
        let all = [recording.begin(None)?, end];
        let grown = recording.growth(all, memprof_profile::Kind::All);
        grown.map(drop).map_err(Into::into)
    })?;
    println!(
        "  a moment: {:.1} ms, at most {most:.1} of {tries}; the time line: {totals:.0} ms; what grew in all of it: {growth:.0} ms",
        median(times)
    );
    Ok(())
}
