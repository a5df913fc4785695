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

/// Compiles the sampling library for memprof's target architecture. The library does not link a C library, so one file
/// works with all of them.
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
        // Outline atomics would call functions of libgcc.
        command.arg("-mno-outline-atomics");
    }
    if env::var("HOST").is_ok_and(|host| host != target) {
        // The default linker is the host's. With RELRO, lld puts data that is read-only after start-up into a segment
        // of its own, whose last page maps the same page of the file as the first page of the data. That mapping is
        // writable while the loader sets it up. The kernel counts a probe's listeners in the first such mapping, where
        // nobody reads them.
        command.args(["-fuse-ld=lld", "-Wl,-z,norelro"]);
    }
    let status = command.args(sources).arg("-o").arg(to).status();
    match status.with_context(|| format!("cannot run `{clang}`"))? {
        status if status.success() => Ok(()),
        status => bail!("cannot compile {SAMPLER}: {clang}: {status}"),
    }
}
