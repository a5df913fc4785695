//! Running processes: their mappings, files and vDSO.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tempfile::tempdir;

use crate::common::process::eventually;
use crate::symbols::fixture::{build, offset_of_addr, place, run, segments};
use memprof_code::modules::{AddressMap, ModuleTable, open_regular};
use memprof_code::symbolize::Symbolizer;
use memprof_profile::symbol::Symbol;
use memprof_profile::{Frame, Module};
use memprof_sys::ids::Pid;
use memprof_sys::target_file::ReadAt;

/// A program that prints the address of `leaf`, and then waits.
const WAITS: &str = r#"
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int leaf(int n) { return n + 1; }
int main(int c, char **v) { printf("%p\n", (void *)leaf); fflush(stdout); pause(); return leaf(c); }
"#;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running(Child);

impl Running {
    fn start(program: &Path) -> (Running, u64) {
        let mut child = Command::new(program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        (
            Running(child),
            u64::from_str_radix(line.trim().trim_start_matches("0x"), 16).unwrap(),
        )
    }

    /// Starts the program and waits until it sleeps: then its loader has mapped everything.
    fn asleep(program: &str, arg: &str) -> Running {
        let child = Command::new(program).arg(arg).spawn();
        let child = Running(child.unwrap_or_else(|e| panic!("{program} is needed: {e}")));
        let call = libc::SYS_clock_nanosleep.to_string();
        let path = format!("/proc/{}/syscall", child.pid());
        eventually(PATIENCE, "it sleeps", || {
            let text = fs::read_to_string(&path).unwrap();
            text.split(' ').next() == Some(call.as_str())
        });
        child
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn name_at(map: &AddressMap, table: &mut ModuleTable, addr: u64) -> Option<(Arc<Module>, String)> {
    let (id, offset) = map.locate(addr)?;
    let modules = table.modules();
    let frame = Frame::code(id, offset);
    let symbols = Symbolizer::start().unwrap().resolve(&[frame], &modules);
    let module = Arc::clone(&modules[usize::from(id.0)]);
    match symbols.get(frame).unwrap() {
        Symbol::Known(f) => Some((module, f.name.clone())),
        other => panic!("{addr:#x} in {}: {other:?}", module.name),
    }
}

#[test]
fn every_byte_of_code_is_where_the_map_says() {
    for (program, arg) in [
        ("sleep", "1000"),
        ("python3", "-cimport time; time.sleep(1000)"),
    ] {
        let child = Running::asleep(program, arg);
        let mut table = ModuleTable::new();
        let map = AddressMap::load(child.pid(), &mut table).unwrap();
        let modules = table.modules();
        let memory = File::open(format!("/proc/{}/mem", child.pid())).unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
        let (mut files, mut compared) = (0, 0);
        for line in maps
            .lines()
            .filter(|l| l.contains("r-xp") && l.contains('/'))
        {
            files += 1;
            let (start, rest) = line.split_once('-').unwrap();
            let start = u64::from_str_radix(start, 16).unwrap();
            let end = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();
            let path = &line[line.find('/').unwrap()..];
            assert_eq!(
                map.locate(end),
                map.locate(end).filter(|_| map.locate(end - 1).is_some())
            );
            for addr in (start..end).step_by(4096 * 7 + 64).chain([start, end - 64]) {
                let (id, offset) = map.locate(addr).unwrap();
                let module = &modules[usize::from(id.0)];
                assert_eq!(module.path, PathBuf::from(path));
                assert_eq!(
                    module.path.file_name().unwrap().to_str(),
                    Some(module.name.as_str())
                );
                let (mut live, mut on_disk) = ([0; 64], [0; 64]);
                memory.read_exact_at(&mut live, addr).unwrap();
                let read = module
                    .file
                    .as_ref()
                    .unwrap()
                    .read_at(&mut on_disk, offset)
                    .unwrap();
                assert_eq!(live[..read], on_disk[..read], "{addr:#x} {path}");
                compared += 1;
            }
        }
        assert!(
            files >= 3 && compared > files * 3,
            "{files} files, {compared} places"
        );
        assert_eq!(map.locate(0), None);
        assert_eq!(map.locate(u64::MAX), None);
        let exe = fs::metadata(format!("/proc/{}/exe", child.pid())).unwrap();
        let own: Vec<_> = modules.iter().filter(|m| m.own_executable).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own[0].dev_ino, (exe.dev(), exe.ino()));
    }
}

#[test]
fn modules_are_shared_and_the_list_is_cheap() {
    let [a, b] = [(); 2].map(|()| Running::asleep("sleep", "1000"));
    let mut table = ModuleTable::new();
    AddressMap::load(a.pid(), &mut table).unwrap();
    let first = table.modules();
    AddressMap::load(b.pid(), &mut table).unwrap();
    assert!(
        Arc::ptr_eq(&first, &table.modules()),
        "the same files in a new list"
    );
    assert_eq!((table.refused(), table.unopened()), (0, 0));
    // Without free file descriptors, modules have no files, and are counted.
    let mut poor = ModuleTable::with_limit(1);
    let map = AddressMap::load(a.pid(), &mut poor).unwrap();
    assert!(!map.is_empty() && map.len() >= 3);
    assert_eq!(
        poor.modules().iter().filter(|m| m.file.is_some()).count(),
        1
    );
    assert_eq!(poor.unopened(), poor.modules().len() as u64 - 1);
}

#[test]
fn the_vdso_has_names() {
    let child = Running::asleep("sleep", "1000");
    let mut table = ModuleTable::new();
    let map = AddressMap::load(child.pid(), &mut table).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
    let line = maps
        .lines()
        .find(|l| l.ends_with("[vdso]"))
        .expect("a vDSO");
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let (id, offset) = map.locate(start).unwrap();
    assert_eq!(offset, 0);
    let modules = table.modules();
    let module = &modules[usize::from(id.0)];
    assert_eq!(
        (module.name.as_str(), module.own_executable),
        ("[vdso]", false)
    );
    let dir = tempdir().unwrap();
    let copy = dir.path().join("vdso.so");
    let mut whole = vec![0; 64 << 10];
    let size = module
        .file
        .as_ref()
        .unwrap()
        .read_at(&mut whole, 0)
        .unwrap();
    fs::write(&copy, &whole[..size]).unwrap();
    let listed = crate::symbols::fixture::nm(&copy, &["-D"]);
    let clock = listed
        .iter()
        .find(|s| s.name.ends_with("clock_gettime"))
        .unwrap();
    let addr = start + offset_of_addr(&segments(&copy), clock.addr).unwrap();
    let (_, name) = name_at(&map, &mut table, addr + 4).unwrap();
    assert_eq!(name, "clock_gettime");
}

#[test]
fn deleted_while_running_and_ended_before_the_names() {
    let dir = tempdir().unwrap();
    let path = build(dir.path(), "fleeting", "cc", WAITS, &["-O1"]);
    let (child, leaf) = Running::start(&path);
    fs::remove_file(&path).unwrap();
    let mut table = ModuleTable::new();
    let map = AddressMap::load(child.pid(), &mut table).unwrap();
    let (module, name) = name_at(&map, &mut table, leaf).unwrap();
    assert_eq!(
        (module.path.as_path(), name.as_str()),
        (path.as_path(), "leaf")
    );
    assert!(module.own_executable);
    drop(child);
    let (module, name) = name_at(&map, &mut table, leaf + 1).unwrap();
    assert_eq!((module.name.as_str(), name.as_str()), ("fleeting", "leaf"));
}

#[test]
fn odd_paths() {
    let dir = tempdir().unwrap();
    let built = build(dir.path(), "plain", "cc", WAITS, &["-O1", "-no-pie"]);
    for name in [
        "new\nline",
        "back\\slash",
        "is (deleted)",
        " spaces ",
        "not \\x41 escaped",
    ] {
        for remove in [false, true] {
            let path = dir.path().join(name);
            // A separate process makes the copy: a child forked by another test would have it open for writing,
            // and it could not be executed.
            run("cp", &[built.to_str().unwrap(), path.to_str().unwrap()]);
            let (child, leaf) = Running::start(&path);
            if remove {
                fs::remove_file(&path).unwrap();
            }
            let mut table = ModuleTable::new();
            let map = AddressMap::load(child.pid(), &mut table).unwrap();
            let (module, function) = name_at(&map, &mut table, leaf).unwrap();
            assert_eq!(
                (&module.path, function.as_str()),
                (&path, "leaf"),
                "removed: {remove}"
            );
            assert!(module.own_executable);
        }
    }
    let (offset, _) = place(&built, "leaf");
    assert!(offset > 0);
}

#[test]
fn a_process_that_is_gone() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut table = ModuleTable::new();
    assert!(AddressMap::load(Pid(child.id()), &mut table).is_err());
    assert!(AddressMap::load(Pid(u32::MAX), &mut table).is_err());
}

#[test]
fn only_regular_files_are_opened() {
    let dir = tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    crate::symbols::fixture::run("mkfifo", &[fifo.to_str().unwrap()]);
    // Opening the first of them would block forever.
    for path in [
        fifo.as_path(),
        Path::new("/dev/zero"),
        Path::new("/"),
        Path::new("/nowhere"),
    ] {
        assert!(open_regular(path).is_err(), "{}", path.display());
    }
}

#[test]
fn the_thread_ends_with_its_last_handle() {
    let threads = || {
        let names = fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = names.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok());
        names.filter(|n| n.trim() == "memprof-symbols").count()
    };
    // Other tests also have such threads, so many are started, and all must end.
    let handles: Vec<Symbolizer> = (0..50).map(|_| Symbolizer::start().unwrap()).collect();
    let copies = handles.clone();
    drop(handles);
    // A thread gets its name when it runs.
    eventually(PATIENCE, "fifty threads run", || threads() >= 50);
    std::thread::sleep(Duration::from_millis(200));
    assert!(threads() >= 50, "a thread ended while a handle exists");
    drop(copies);
    eventually(PATIENCE, "the threads end", || threads() < 50);
}
