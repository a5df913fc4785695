//! memprof's overhead on builds and scripts: many short processes, all of them followed.
//!
//! ```text
//! cargo bench --bench builds [-- NAME…]      (as root)
//! MEMPROF_BENCH_FULL=1 cargo bench --bench builds      (120 gcc -c, 20,000 /bin/true, 300 CPython)
//! ```
//!
//! Runs without and with memprof alternate. The wall-clock time of the processes is compared, without
//! memprof's own start and end. Nothing is pinned to a CPU: memprof and the processes share the machine, as
//! in real use.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::group::Group;
use support::pairs::{Aim, Pairs, is_full, number};
use support::profiler::losses;
use support::skip::skip_named;
use support::workload::compile;
use support::{Bench, Measurement};

const MEMPROF: &str = env!("CARGO_BIN_EXE_memprof");
const BUILD: Aim = Aim::AtMost(1.08);
const START: Aim = Aim::AtMost(1.15);
const MEASUREMENTS: [Measurement; 6] = [
    ("gcc", gcc),
    ("true", spawned_true),
    ("fork", forked_true),
    ("python", python),
    ("cgroup-gcc", cgroup_gcc),
    ("cgroup-true", cgroup_true),
];

fn main() -> ExitCode {
    Bench::main(Bench::unpinned("bench-builds", compile), &MEASUREMENTS)
}

/// The count for short runs or for full runs.
fn count(short: u32, all: u32) -> String {
    if is_full() { all } else { short }.to_string()
}

fn pairs() -> usize {
    number(3, 7)
}

/// Which processes memprof follows.
#[derive(Clone, Copy)]
enum By<'a> {
    /// `--follow-forks -- COMMAND`.
    Forks,
    /// `--cgroup` with the command in that group. Without memprof the command also runs in the group.
    Group(&'a Group),
}

/// Runs `spawn` to its end; returns the duration of its processes in ms.
fn run(mut command: Command) -> Result<(f64, String)> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(
        out.status.success(),
        "{command:?} ended with {}: {said}",
        out.status
    );
    let text = String::from_utf8_lossy(&out.stdout);
    let ns = text.lines().find_map(|l| l.strip_prefix("elapsed_ns "));
    let ns: f64 = ns
        .with_context(|| format!("{command:?} printed {text:?}"))?
        .parse()?;
    Ok((ns / 1e6, said))
}

fn plain(argv: &[&str]) -> Command {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]);
    command
}

/// A memprof with a server, killed when dropped.
struct Memprof(Child);

impl Drop for Memprof {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command in a control group that memprof follows.
fn followed_group(group: &Group, argv: &[&str]) -> Result<(f64, String)> {
    let child = Command::new(MEMPROF)
        .args(["--listen", "127.0.0.1:0", "--cgroup", &group.name()?])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run memprof")?;
    let mut memprof = Memprof(child);
    let stderr = memprof.0.stderr.take().context("no stderr")?;
    let mut lines = BufReader::new(stderr).lines();
    // From this message on, memprof follows processes that enter the group.
    loop {
        let line = lines.next().context("memprof ended early")??;
        if line.contains("waiting for a process in") {
            break;
        }
    }
    std::thread::spawn(move || lines.for_each(drop));
    let (milliseconds, _) = run(group.command(argv))?;
    kill(Pid::from_raw(memprof.0.id().cast_signed()), Signal::SIGINT)?;
    let mut summary = String::new();
    let mut stdout = memprof.0.stdout.take().context("no stdout")?;
    std::io::Read::read_to_string(&mut stdout, &mut summary)?;
    let status = memprof.0.wait()?;
    ensure!(status.success(), "memprof ended with {status}");
    Ok((milliseconds, summary))
}

/// One row: the command without and with memprof.
fn measure(name: &str, aim: Aim, by: By<'_>, argv: &[&str]) -> Result<()> {
    let mut figures = [Pairs::new(name, "ms", aim)];
    let mut lost = Vec::new();
    Pairs::settle(&mut figures, pairs(), |[row]| {
        let (without, with) = match by {
            By::Forks => {
                let mut memprof = Command::new(MEMPROF);
                memprof
                    .args(["--no-server", "--follow-forks", "--"])
                    .args(argv);
                (run(plain(argv))?, run(memprof)?)
            }
            By::Group(group) => (run(group.command(argv))?, followed_group(group, argv)?),
        };
        row.add(without.0, with.0);
        lost.extend(losses(&with.1)?);
        Ok(())
    })?;
    println!("{}", figures[0].row());
    lost.iter().for_each(|row| println!("  lost: {row}"));
    Ok(())
}

/// Measures `spawn HOW COUNT PROGRAM ARGS…`.
fn spawn(bench: &Bench, name: &str, aim: Aim, by: By<'_>, args: &[&str]) -> Result<()> {
    let program = bench.programs.join("spawn");
    let program = program.to_str().context("the path is not UTF-8")?;
    let mut argv = vec![program];
    argv.extend(args);
    measure(name, aim, by, &argv)
}

fn build(bench: &Bench, by: By<'_>, how: &str) -> Result<()> {
    let dir = tempfile::tempdir_in(&bench.programs)?;
    let source = dir.path().join("small.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
         size_t length(int n)\n{\n\tchar text[64];\n\n\
         \tsnprintf(text, sizeof(text), \"%d\", n);\n\treturn strlen(text);\n}\n",
    )?;
    let files = count(60, 120);
    let script = format!(
        "seq {files} | xargs -P8 -I{{}} gcc -c -O1 -o {0}/{{}}.o {0}/small.c",
        dir.path().display()
    );
    let name = format!("{files} `gcc -c`, eight at a time, {how}");
    spawn(
        bench,
        &name,
        BUILD,
        by,
        &["posix_spawn", "1", "sh", "-c", &script],
    )
}

fn trues(bench: &Bench, how: &str, by: By<'_>, by_name: &str) -> Result<()> {
    let many = count(1_000, 20_000);
    let name = format!("{many} /bin/true by {how}, {by_name}");
    spawn(bench, &name, START, by, &[how, &many, "/bin/true"])
}

fn gcc(bench: &Bench) -> Result<()> {
    build(bench, By::Forks, "forks")
}

fn spawned_true(bench: &Bench) -> Result<()> {
    trues(bench, "posix_spawn", By::Forks, "forks")
}

fn forked_true(bench: &Bench) -> Result<()> {
    trues(bench, "fork", By::Forks, "forks")
}

fn python(bench: &Bench) -> Result<()> {
    // Not from PATH, where a version manager's wrapper script may come first.
    let program = "/usr/bin/python3";
    if !Path::new(program).exists() {
        skip_named("bench builds", format_args!("there is no {program}"));
        return Ok(());
    }
    let many = count(100, 300);
    let name = format!("{many} CPython starts, forks");
    let args = ["posix_spawn", &many, program, "-S", "-c", "pass"];
    spawn(bench, &name, START, By::Forks, &args)
}

fn cgroup_gcc(bench: &Bench) -> Result<()> {
    match Group::new("bench builds")? {
        Some(group) => build(bench, By::Group(&group), "cgroup"),
        None => Ok(()),
    }
}

fn cgroup_true(bench: &Bench) -> Result<()> {
    match Group::new("bench builds")? {
        Some(group) => trues(bench, "posix_spawn", By::Group(&group), "cgroup"),
        None => Ok(()),
    }
}
