//! Names executables in the module table after the names under which processes run them ([`memprof_sys::run_name`]).

use std::path::PathBuf;
use std::sync::Arc;

use super::ModuleTable;
use memprof_profile::{Module, ModuleId};
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
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

/// Maximum number of [`Start`]s that are remembered.
const MAX_STARTS: usize = 1024;

/// The start of a program: the kernel's path of the executable, the mount namespace, and the name of the process, which is the base
/// name that was executed, up to 15 bytes of it. All starts that are alike run the same file under the same name.
pub(super) type Start = (PathBuf, PathBuf, String);

impl ModuleTable {
    /// Like [`Self::runs`], for a process that has just started under the name `comm`. Of starts that are alike, only the first ones are
    /// examined: a build has thousands.
    pub fn starts(&mut self, pid: Pid, comm: &str) {
        if self.unnamed.is_empty() {
            return;
        }
        let [Ok(executable), Ok(mounts)] = ["exe", "ns/mnt"].map(|name| proc_dir::link(pid, name))
        else {
            return;
        };
        let start = (executable, mounts, comm.to_owned());
        if self.examined.contains(&start) {
            return;
        }
        if self.runs(pid) {
            if self.examined.len() >= MAX_STARTS {
                self.examined.clear();
            }
            self.examined.insert(start);
        }
    }

    /// Names a process's executable after the name under which it runs. One file may have many names, and the kernel
    /// reports only one of them. If another process runs the same file under another name, the kernel's name remains. Returns whether
    /// the executable is known and a name was found.
    pub fn runs(&mut self, pid: Pid) -> bool {
        self.try_name(pid).is_some()
    }

    fn try_name(&mut self, pid: Pid) -> Option<()> {
        if self.unnamed.is_empty() {
            return None;
        }
        let identity = executable(pid)?;
        let at = self.unnamed.iter().position(|e| e.identity == identity)?;
        let Executable {
            module, runs_as, ..
        } = &self.unnamed[at];
        let path = self.modules[usize::from(module.0)].path.clone();
        let name = name_of(pid, identity, &path)?;
        let kernels = base_name(&path);
        let first = runs_as.as_ref().is_none_or(|first| *first == name);
        let keeps = first && says_more(&name, &kernels);
        self.rename(*module, if keeps { &name } else { &kernels }.clone());
        match keeps {
            true => self.unnamed[at].runs_as = Some(name),
            false => drop(self.unnamed.swap_remove(at)),
        }
        Some(())
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
        // A second start under the same name is skipped. A start under another name is examined.
        table.starts(Pid(one.pid()), "one");
        assert_eq!(table.examined.len(), 1);
        let at = table.unnamed.len() - 1;
        table.unnamed[at].runs_as = None;
        table.starts(Pid(again.pid()), "one");
        assert_eq!(table.unnamed[at].runs_as, None);
        table.unnamed[at].runs_as = Some("one".to_owned());
        table.starts(Pid(two.pid()), "two");
        for sleeper in [&two, &one] {
            table.runs(Pid(sleeper.pid()));
            assert_eq!(name(&mut table), "box");
        }
    }
}
