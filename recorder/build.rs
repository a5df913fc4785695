//! Compiles the BPF programs and generates their Rust skeleton into `OUT_DIR`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/recorder.bpf.c";

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=../vmlinux");
    let version = env::var("CARGO_PKG_VERSION").context("CARGO_PKG_VERSION is not set")?;
    let commit = commit().unwrap_or(version);
    println!("cargo:rustc-env=TEZOS_RECORDER_COMMIT={commit}");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("CARGO_CFG_TARGET_ARCH is not set")?;
    // memprof's own: one file for each architecture, and the types that they share.
    let headers = PathBuf::from("../vmlinux").join(&arch);
    if !headers.is_dir() {
        bail!("there are no kernel headers for {arch}: build tezos-recorder for x86_64 or aarch64");
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
            "-mcpu=v3".into(),
            "-Wall".into(),
            "-Wextra".into(),
            "-Werror".into(),
            "-Wno-unused-parameter".into(),
        ])
        .build_and_generate(out.join("recorder.skel.rs"))
        .with_context(|| format!("cannot compile {SOURCE}"))
}

/// The commit of the git checkout that has this package, if there is one. Cargo runs this again when another is checked out.
fn commit() -> Option<String> {
    // A package of a registry may be inside of a checkout of something else.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        // A file that does not exist would count as changed each time.
        if let Some(path) =
            git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists())
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"])
}

/// The line that git prints; nothing if it fails.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    let line = line.trim_end().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
