//! File trees of targets: a container has its own.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::find::{about, find_in, root_of};
use super::{TargetFile, handle_of};
use crate::ids::Pid;

/// A file tree other than memprof's own.
#[derive(Clone, Debug)]
pub struct FileTree {
    root: Arc<File>,
    id: TreeId,
}

/// Identifies a file tree: device and inode number of its root, and the mount id of the root.
pub type TreeId = ((u64, u64), u64);

impl FileTree {
    /// The file tree of a process; `None` if it is memprof's own or the process has ended.
    pub fn for_process(pid: Pid) -> Option<FileTree> {
        let (root, own) = (root_of(pid).ok()?, handle_of(Path::new("/")).ok()?);
        let id = id_of(&root).ok()?;
        let is_own = id_of(&own).is_ok_and(|own| own == id);
        let root = Arc::new(root);
        (!is_own).then_some(FileTree { root, id })
    }

    /// The identity of the tree's root.
    pub fn id(&self) -> TreeId {
        self.id
    }

    /// A regular file in this tree.
    ///
    /// # Errors
    /// There is no such file, it is not regular, it cannot be opened, or its file system does not answer.
    pub fn open(&self, path: &Path) -> io::Result<TargetFile> {
        TargetFile::of_handle(find_in(&self.root, path, 0)?)
    }
}

fn id_of(root: &File) -> io::Result<TreeId> {
    about(root).map(|about| (about.identity(), about.mount()))
}
