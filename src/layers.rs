//! The walls between the wings: each imports only from the wings below it. The lower six are crates in `crates/`.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates, from the ground up.
const CRATES: [&str; 6] = ["sys", "profile", "recording", "code", "heap", "server"];
/// The wings of this crate, from the ground up.
const WINGS: [&str; 6] = ["probe", "collect", "export", "http", "tui", "app"];

fn height(wing: &str) -> Option<usize> {
    WINGS.iter().position(|known| *known == wing)
}

/// The paths in a source line that begin at the crate's root, as the wing that each one names.
fn wings_named(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).flat_map(|rest| {
        let group = rest.strip_prefix('{').map(|group| group.split(','));
        let names = group.into_iter().flatten().chain([rest]);
        names.map(|name| {
            let name = name.trim_start();
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
            &name[..end.unwrap_or(name.len())]
        })
    })
}

/// The upward imports of a file, `path` below `src/`: line number, and the message.
fn upward(path: &Path, text: &str) -> Vec<String> {
    let first = path.components().next().map(|c| c.as_os_str());
    let wing = first.and_then(|name| Path::new(name).file_stem());
    let wing = wing.and_then(|name| name.to_str()).unwrap_or_default();
    let Some(own) = height(wing) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for named in wings_named(line).filter(|named| height(named).is_some_and(|h| h > own)) {
            found.push(format!(
                "src/{}:{}: {wing} must not import from {named}, which lies above it: move the definition down to \
                 {wing} or below, or have {named} pass it in (a value, a closure, a trait)\n    {}",
                path.display(),
                at + 1,
                line.trim()
            ));
        }
    }
    found
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_wing_imports_upwards() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 200, "only {} sources", files.len());
    let found: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            upward(file.strip_prefix(&src).unwrap(), &text)
        })
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Cargo permits no circle; this test permits no other order either.
#[test]
fn no_crate_depends_upwards() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for (at, name) in CRATES.iter().enumerate() {
        let manifest = crates.join(format!("memprof-{name}/Cargo.toml"));
        let manifest = fs::read_to_string(manifest).unwrap();
        for above in &CRATES[at + 1..] {
            assert!(
                !manifest.contains(&format!("memprof-{above}")),
                "memprof-{name} must not depend on memprof-{above}, which lies above it: move the definition down"
            );
        }
    }
    assert_eq!(fs::read_dir(crates).unwrap().count(), CRATES.len());
}

/// Each module of the crate's root is a wing, so that no room stands outside the walls.
#[test]
fn the_root_has_no_other_modules() {
    let root = include_str!("lib.rs");
    let modules = root.lines().filter_map(|line| {
        let rest = line.strip_suffix(';')?;
        let (visibility, name) = rest.rsplit_once("mod ")?;
        visibility.starts_with("pub").then_some(name)
    });
    let mut modules: Vec<&str> = modules.collect();
    modules.sort_by_key(|name| height(name));
    assert_eq!(modules, WINGS);
}

#[test]
fn an_upward_import_is_found() {
    let found = |path: &str, text: &str| upward(Path::new(path), text).len();
    assert_eq!(found("probe/load.rs", "use crate::collect::Status;"), 1);
    assert_eq!(
        found("probe.rs", "    use crate::{http::api, probe::wire};"),
        1
    );
    assert_eq!(found("export/csv.rs", "fn f(x: &crate::tui::View) {}"), 1);
    assert_eq!(found("app/cli.rs", "use crate::probe::Probe;"), 0);
    assert_eq!(found("probe/load.rs", "// see crate::collect"), 0);
    assert_eq!(found("main.rs", "use crate::app::cli;"), 0);
}
