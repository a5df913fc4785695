//! Compiles the BPF programs and generates their Rust skeleton into `OUT_DIR`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/recorder.bpf.c";

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=../vmlinux");
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
