//! Compiles the BPF program and generates its Rust skeleton in `OUT_DIR`; compiles the sampling library that targets
//! preload.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/memprof.bpf.c";
const SAMPLER: &str = "src/heap/sampler";
const SAMPLER_FLAGS: &str = "src/heap/sampler/flags";

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=vmlinux");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("CARGO_CFG_TARGET_ARCH is not set")?;
    let headers = PathBuf::from("vmlinux").join(&arch);
    if !headers.is_dir() {
        bail!("there are no kernel headers for {arch}: build memprof for x86_64 or aarch64");
    }
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        bail!(
            "cannot run `{clang}`, which compiles {SOURCE}.\n\
             Install it (Debian, Ubuntu: sudo apt-get install clang) or set CLANG to another one."
        );
    }
    let out = PathBuf::from(env::var("OUT_DIR").context("OUT_DIR is not set")?);
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang(&clang)
        .clang_args([
            format!("-I{}", headers.display()),
            // v3: atomic operations that return the old value (Linux 5.12).
            "-mcpu=v3".into(),
            "-Wall".into(),
            "-Wextra".into(),
            "-Werror".into(),
            "-Wno-unused-parameter".into(),
        ])
        .build_and_generate(out.join("memprof.skel.rs"))
        .with_context(|| format!("cannot compile {SOURCE}"))?;
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
        // the sampler does not read them.
        command.args(["-fuse-ld=lld", "-Wl,-z,norelro"]);
    }
    let status = command.args(sources).arg("-o").arg(to).status();
    match status.with_context(|| format!("cannot run `{clang}`"))? {
        status if status.success() => Ok(()),
        status => bail!("cannot compile {SAMPLER}: {clang}: {status}"),
    }
}
