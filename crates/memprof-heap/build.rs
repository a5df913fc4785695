//! Compiles the library that targets preload into `OUT_DIR`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const SAMPLER: &str = "src/sampler";
const SAMPLER_FLAGS: &str = "src/sampler/flags";

fn main() -> Result<()> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var("OUT_DIR").context("OUT_DIR is not set")?);
    compile_sampler(&clang, &out.join("libmemprof_heap.so"))
}

/// Compiles the library for the processor that memprof is compiled for. It needs no C library, so one file serves
/// all of them.
fn compile_sampler(clang: &str, to: &Path) -> Result<()> {
    println!("cargo:rerun-if-changed={SAMPLER}");
    let flags = fs::read_to_string(SAMPLER_FLAGS)
        .with_context(|| format!("cannot read {SAMPLER_FLAGS}"))?;
    let mut sources: Vec<PathBuf> = fs::read_dir(SAMPLER)
        .and_then(|dir| dir.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("cannot read {SAMPLER}"))?;
    sources.retain(|path| path.extension().is_some_and(|e| e == "c"));
    sources.sort();
    let target = env::var("TARGET").context("TARGET is not set")?;
    let mut command = Command::new(clang);
    command.arg(format!("--target={target}"));
    command.args(flags.split_whitespace());
    if target.starts_with("aarch64") {
        // Atomic operations would be functions of libgcc.
        command.arg("-mno-outline-atomics");
    }
    if env::var("HOST").is_ok_and(|host| host != target) {
        // The usual linker is the host's. This one would put what is read-only after the start into a segment of its own, whose
        // last page is mapped from the same page of the file as the first one of the data. While the loader maps that, it can be
        // written to, and the kernel counts a listener of the probes in the first such mapping, where nobody reads it.
        command.args(["-fuse-ld=lld", "-Wl,-z,norelro"]);
    }
    let status = command.args(sources).arg("-o").arg(to).status();
    match status.with_context(|| format!("cannot run `{clang}`"))? {
        status if status.success() => Ok(()),
        status => bail!("cannot compile {SAMPLER}: {clang}: {status}"),
    }
}
