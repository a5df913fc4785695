//! Programs with known symbols, and the symbols that binutils finds in them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::{Function, Symbol};
use memprof_profile::{Frame, Module, ModuleId};

/// Runs a tool that must be installed; returns its output.
pub fn run(tool: &str, args: &[&str]) -> String {
    let out = Command::new(tool).args(args).output();
    let out = out.unwrap_or_else(|e| panic!("{tool} is needed for this test: {e}"));
    assert!(
        out.status.success(),
        "{tool} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Compiles `source` with `tool` into `dir/name`.
pub fn build(dir: &Path, name: &str, tool: &str, source: &str, flags: &[&str]) -> PathBuf {
    let ending = match tool {
        "rustc" => "rs",
        "c++" => "cc",
        _ => "c",
    };
    let src = dir.join(format!("{name}_src.{ending}"));
    fs::write(&src, source).unwrap();
    let out = dir.join(name);
    let mut args = flags.to_vec();
    args.extend(["-o", out.to_str().unwrap(), src.to_str().unwrap()]);
    run(tool, &args);
    out
}

/// A module as the collector would make it.
pub fn module(path: &Path) -> Arc<Module> {
    Arc::new(Module {
        path: path.to_path_buf(),
        name: path.file_name().unwrap().to_string_lossy().into_owned(),
        dev_ino: (0, 0),
        file: Some(File::open(path).unwrap().into()),
        tree: None,
        layout: None,
        functions: None,
        own_executable: true,
    })
}

/// Looks up one file offset.
pub fn symbol(s: &Symbolizer, module: &Arc<Module>, offset: u64, detail: Detail) -> Symbol {
    let frame = Frame::code(ModuleId(0), offset);
    let symbols = s.resolve_with(&[frame], std::slice::from_ref(module), detail);
    symbols
        .get(frame)
        .expect("every frame has a symbol")
        .clone()
}

/// Looks up one file offset that must have a name.
pub fn function(s: &Symbolizer, module: &Arc<Module>, offset: u64, detail: Detail) -> Function {
    match symbol(s, module, offset, detail) {
        Symbol::Known(f) => f,
        other => panic!("{offset:#x} of {}: {other:?}", module.name),
    }
}

/// A symbol with a size, as `nm -S` lists it.
#[derive(Debug, Clone)]
pub struct Listed {
    pub addr: u64,
    pub size: u64,
    pub kind: char,
    pub name: String,
}

/// The defined symbols with a size of a file.
pub fn nm(path: &Path, flags: &[&str]) -> Vec<Listed> {
    let mut args = vec!["-S", "--defined-only"];
    args.extend(flags);
    args.push(path.to_str().unwrap());
    let listed = run("nm", &args);
    let parse = |line: &str| {
        let mut f = line.splitn(4, ' ');
        let addr = u64::from_str_radix(f.next()?, 16).ok()?;
        let size = u64::from_str_radix(f.next()?, 16).ok()?;
        let kind = f.next()?.chars().next()?;
        let name = f.next()?.split('@').next()?.to_owned();
        Some(Listed {
            addr,
            size,
            kind,
            name,
        })
    };
    listed.lines().filter_map(parse).collect()
}

/// The loaded segments of a file: (file offset, address, size in the file).
pub fn segments(path: &Path) -> Vec<(u64, u64, u64)> {
    let listed = run("readelf", &["-lW", path.to_str().unwrap()]);
    let hex = |s: &str| u64::from_str_radix(s.trim_start_matches("0x"), 16).unwrap();
    let loads = listed
        .lines()
        .filter(|l| l.trim_start().starts_with("LOAD"));
    let parse = |l: &str| {
        let f: Vec<&str> = l.split_whitespace().collect();
        (hex(f[1]), hex(f[2]), hex(f[4]))
    };
    loads.map(parse).collect()
}

/// The file offset of an address.
pub fn offset_of_addr(segments: &[(u64, u64, u64)], addr: u64) -> Option<u64> {
    let part = segments
        .iter()
        .find(|(_, at, size)| (*at..at + size).contains(&addr));
    part.map(|(offset, at, _)| addr - at + offset)
}

/// The file offset of a symbol whose mangled name contains `part`, and its size.
pub fn place(path: &Path, part: &str) -> (u64, u64) {
    let all = nm(path, &[]);
    let found = all.iter().find(|s| s.name.contains(part));
    let found = found.unwrap_or_else(|| panic!("no {part} in {}", path.display()));
    (
        offset_of_addr(&segments(path), found.addr).unwrap(),
        found.size,
    )
}

/// Demangles with binutils.
pub fn cxxfilt(names: &[String]) -> Vec<String> {
    let mut child = Command::new("c++filt")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("c++filt is needed for this test");
    let mut input = child.stdin.take().unwrap();
    let text = names.join("\n");
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}
