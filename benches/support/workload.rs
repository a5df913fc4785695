//! The C programs of `benches/workloads`: compiles, starts, controls and ends them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Cpus, pin};

/// The flags of `run-tests`.
const FLAGS: [&str; 8] = [
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-g",
    "-pthread",
    "-O2",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
];

/// Compiles every workload into `to`.
pub fn compile(to: &Path) -> Result<()> {
    compile_with(to, &[])
}

/// Compiles every workload into `to` without frame pointers, like most programs.
pub fn compile_without_frame_pointers(to: &Path) -> Result<()> {
    compile_with(to, &["-fomit-frame-pointer"])
}

fn compile_with(to: &Path, flags: &[&str]) -> Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/workloads");
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(&from)? {
        let source = entry?.path();
        if source.extension().is_none_or(|ending| ending != "c") {
            continue;
        }
        let name = source.file_stem().context("a workload without a name")?;
        let status = Command::new("cc")
            .args(FLAGS)
            .args(flags)
            .arg("-o")
            .args([&to.join(name), &source])
            .status()
            .context("cannot run cc, the C compiler")?;
        ensure!(status.success(), "cc failed on {}", source.display());
    }
    Ok(())
}

/// A workload that waits for the start of its timed part.
pub struct Workload {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    name: String,
}

/// The figures of one line: `pages 262144 ns_per_page 512.3`.
pub type Figures = HashMap<String, f64>;

impl Workload {
    /// Starts a program on the workload's CPU; it waits for [`go`](Workload::go).
    pub fn start(program: &PathBuf, args: &[&str], cpus: Cpus) -> Result<Workload> {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        pin(child.id(), cpus.workload)?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        Ok(Workload {
            stdin,
            stdout,
            name: name.into_owned(),
            child,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs its timed part, and returns the figures that it prints.
    pub fn go(&mut self) -> Result<Figures> {
        self.stdin.write_all(b"\n")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut figures = Figures::new();
        for pair in words.chunks(2) {
            let [name, value] = pair else {
                bail!("{} printed {line:?}", self.name);
            };
            let value = value
                .parse()
                .with_context(|| format!("{} printed {line:?}", self.name))?;
            figures.insert((*name).to_owned(), value);
        }
        ensure!(!figures.is_empty(), "{} printed nothing", self.name);
        Ok(figures)
    }

    /// Ends it; fails unless its exit status is 0.
    pub fn end(mut self) -> Result<()> {
        drop(self.stdin);
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }
}

/// One of the figures that a workload printed.
pub fn figure(figures: &Figures, name: &str) -> Result<f64> {
    let found = figures.get(name).copied();
    found.with_context(|| format!("the workload printed no {name}: {figures:?}"))
}
