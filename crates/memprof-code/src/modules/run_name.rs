//! Names executables in the module table after the names under which processes run them ([`memprof_sys::run_name`]).

use std::sync::Arc;

use super::ModuleTable;
use memprof_profile::{Module, ModuleId};
use memprof_sys::ids::Pid;
use memprof_sys::run_name::{base_name, executable, name_of, says_more};

/// An executable of a target whose name may still change.
#[derive(Debug)]
pub(super) struct Executable {
    pub(super) module: ModuleId,
    /// Device and inode number, as `stat` reports them.
    pub(super) identity: (u64, u64),
    /// Name under which the first process ran it.
    pub(super) runs_as: Option<String>,
}

impl ModuleTable {
    /// Names a process's executable after the name under which it runs. One file may have many names, and the kernel
    /// reports only one of them. If another process runs the same file under another name, the kernel's name remains.
    pub fn runs(&mut self, pid: Pid) {
        if self.unnamed.is_empty() {
            return;
        }
        let Some(identity) = executable(pid) else {
            return;
        };
        let found = self.unnamed.iter().position(|e| e.identity == identity);
        let Some((
            at,
            Executable {
                module, runs_as, ..
            },
        )) = found.map(|at| (at, &self.unnamed[at]))
        else {
            return;
        };
        let path = self.modules[usize::from(module.0)].path.clone();
        let Some(name) = name_of(pid, identity, &path) else {
            return;
        };
        let kernels = base_name(&path);
        let first = runs_as.as_ref().is_none_or(|first| *first == name);
        let keeps = first && says_more(&name, &kernels);
        self.rename(*module, if keeps { &name } else { &kernels }.clone());
        match keeps {
            true => self.unnamed[at].runs_as = Some(name),
            false => drop(self.unnamed.swap_remove(at)),
        }
    }

    /// Renames a module. Existing reports keep the old name.
    fn rename(&mut self, id: ModuleId, name: String) {
        let module = &mut self.modules[usize::from(id.0)];
        if module.name == name {
            return;
        }
        *module = Arc::new(Module {
            path: module.path.clone(),
            tree: module.tree.clone(),
            name,
            dev_ino: module.dev_ino,
            file: module.file.clone(),
            layout: None,
            functions: None,
            own_executable: module.own_executable,
        });
        self.shared = None;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::modules::AddressMap;
    use crate::programs::{Sleeper, copy_program};

    #[test]
    fn a_file_that_runs_under_two_names_keeps_the_kernels() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        copy_program("/bin/sleep", dir.join("box"));
        for link in ["one", "two"] {
            symlink("box", dir.join(link)).unwrap();
        }
        let [one, again, two] =
            ["one", "one", "two"].map(|link| Sleeper::start(&dir.join(link), link, dir));
        let mut table = ModuleTable::new();
        AddressMap::load(Pid(one.pid()), &mut table).unwrap();
        let name = |table: &mut ModuleTable| {
            let all = table.modules();
            let own = all.iter().find(|module| module.own_executable).unwrap();
            assert!(own.path.ends_with("box") && own.file.is_some());
            own.name.clone()
        };
        assert_eq!(name(&mut table), "box");
        for sleeper in [&one, &again] {
            table.runs(Pid(sleeper.pid()));
            assert_eq!(name(&mut table), "one");
        }
        for sleeper in [&two, &one] {
            table.runs(Pid(sleeper.pid()));
            assert_eq!(name(&mut table), "box");
        }
    }
}
