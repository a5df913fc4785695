//! The directory of a store, which one recorder at a time has.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::error::StoreError;

/// The file by which a directory is recognised, and locked as long as a recorder uses it.
const NAME: &str = "recorder.lock";

/// Creates the directory if there is none, and locks it.
pub(super) fn lock(dir: &Path) -> Result<Flock<File>, StoreError> {
    let path = dir.join(NAME);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(StoreError::io("create", dir))?;
    if !path.exists() {
        let mut entries = fs::read_dir(dir).map_err(StoreError::io("read", dir))?;
        if entries.next().is_some() {
            return Err(StoreError::Foreign {
                path: dir.to_path_buf(),
            });
        }
    }
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let mut file = options.open(&path).map_err(StoreError::io("open", &path))?;
    let mut process = String::new();
    // The process id is for a message: an old one, or none, does no harm.
    let _ = (&mut file).take(20).read_to_string(&mut process);
    let mut file =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
            nix::errno::Errno::EWOULDBLOCK => StoreError::InUse {
                path: dir.to_path_buf(),
                process: process.trim().to_owned(),
            },
            error => StoreError::io("lock", &path)(error.into()),
        })?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))
        .map_err(StoreError::io("change the mode of", dir))?;
    let own = format!("{:<20}", std::process::id());
    let written = std::io::Seek::rewind(&mut *file).and_then(|()| file.write_all(own.as_bytes()));
    written.map_err(StoreError::io("write", &path))?;
    Ok(file)
}
