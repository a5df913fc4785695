//! Rules from machine code, compared with those that compilers wrote: of libraries whose unwind information was taken away.
//!
//! Needs `objcopy`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::common::skip::skip;
use memprof_code::elf::Elf;
use memprof_code::unwind::{CfaKind, Rule, Table};

/// The rules of a library at each address, by its own information and by its machine code.
fn both(library: &Path) -> (Table, Table) {
    let bare = tempfile::NamedTempFile::new().unwrap();
    let sections = [".eh_frame", ".eh_frame_hdr", ".debug_frame"];
    let remove = sections.iter().flat_map(|section| ["-R", section]);
    let mut objcopy = Command::new("objcopy");
    let status = objcopy.args(remove).arg(library).arg(bare.path()).status();
    assert!(status.unwrap().success());
    let table = |path: &Path| Table::build(&File::open(path).unwrap()).unwrap();
    (table(library), table(bare.path()))
}

/// Most code is followed, and its rules are right. (Wrong ones are possible behind calls that do not return, where the code of
/// another function begins: where exceptions land, which exist only in files with unwind information.)
#[test]
fn compilers_agree() {
    let library = Path::new("/lib/x86_64-linux-gnu/libm.so.6");
    if !library.exists() {
        return skip(format_args!("there is no {}", library.display()));
    }
    let (written, followed) = both(library);
    let file = File::open(library).unwrap();
    let elf = Elf::read(&file).unwrap();
    let (mut same, mut wrong) = (0u64, Vec::new());
    for at in elf.code_segments().flat_map(|s| s.addr..s.addr + s.size) {
        let (wanted, found) = (written.rule_at(at), followed.rule_at(at));
        let by_sp = |rule: &Rule| rule.cfa_kind() == CfaKind::Sp;
        // (The frame pointer may serve as well.)
        match (by_sp(wanted), by_sp(found)) {
            (true, true) if wanted.cfa_offset == found.cfa_offset => same += 1,
            (true, true) => wrong.push(at),
            _ => {}
        }
    }
    let size = fs::metadata(library).unwrap().len();
    println!(
        "{}: {same} of {size} bytes, {} wrong",
        library.display(),
        wrong.len()
    );
    assert!(same > size / 5, "{same} of {size}");
    assert!(wrong.len() as u64 * 1000 < same, "{same}: {wrong:x?}");
}
