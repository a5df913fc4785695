//! One request to one server, which stores the file in the cache directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ureq::Agent;

use super::Limits;
use crate::elf::Elf;
use crate::symbolize::debuginfod_cache::file_of;
use crate::symbolize::fetch::BuildId;
use memprof_sys::http_client;

const MAX_REDIRECTS: u32 = 5;

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The file is in the cache directory; its size, in bytes.
    Fetched(u64),
    /// The server does not have it.
    Missing,
    /// The server could not be reached, or did not respond.
    Unreachable(String),
    /// The response is unusable, or the file cannot be written.
    Failed(String),
}

pub(super) struct Client {
    agent: Agent,
    directory: PathBuf,
}

impl Client {
    pub fn new(servers: &[String], directory: PathBuf, limits: Limits) -> Client {
        let authorities = http_client::authorities_for(servers.iter().map(String::as_str));
        let config = http_client::settings(authorities)
            .max_redirects(MAX_REDIRECTS)
            .timeout_resolve(Some(limits.idle))
            .timeout_connect(Some(limits.idle))
            .timeout_recv_response(Some(limits.idle))
            .timeout_per_read(Some(limits.idle))
            .timeout_global(Some(limits.whole))
            .build();
        Client {
            agent: config.into(),
            directory,
        }
    }

    /// Fetches the debug file with this build id; `room` is its maximum size, in bytes.
    pub fn fetch(&self, server: &str, id: &BuildId, room: u64) -> Answer {
        let url = format!("{server}/buildid/{id}/debuginfo");
        let response = match self.agent.get(&url).call() {
            Ok(response) => response,
            Err(e) => return Answer::Unreachable(e.to_string()),
        };
        match response.status().as_u16() {
            200 => {}
            404 => return Answer::Missing,
            status => return Answer::Failed(format!("the server answered with status {status}")),
        }
        let mut body = response.into_body();
        let too_large = || Answer::Failed(format!("the file is larger than {room} bytes"));
        if body.content_length().is_some_and(|size| size > room) {
            return too_large();
        }
        let body = body.as_reader().take(room.saturating_add(1));
        match self.keep(id, body, room) {
            Ok(bytes) if bytes > room => too_large(),
            Ok(bytes) => Answer::Fetched(bytes),
            Err(why) => Answer::Failed(why),
        }
    }

    /// Writes the file, checks its build id and renames it into place. A file larger than `room` bytes is discarded.
    fn keep(&self, id: &BuildId, body: impl Read, room: u64) -> Result<u64, String> {
        let path = file_of(&self.directory, id);
        let dir = path.parent().unwrap_or(&self.directory);
        let cannot = |e: io::Error| {
            let (path, variable) = (
                path.display(),
                crate::symbolize::debuginfod_cache::CACHE_PATH,
            );
            format!("cannot write {path}: {e}; set {variable} to a directory of your own")
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(cannot)?;
        let part = PartialFile::create(dir).map_err(cannot)?;
        let bytes = copy(body, &part.file, cannot)?;
        if bytes > room {
            return Ok(bytes);
        }
        match Elf::read(&part.file).map(|elf| BuildId::from_elf(&elf)) {
            Ok(found) if found.as_ref() == Some(id) => {}
            Ok(Some(other)) => return Err(format!("the file has another build id, {other}")),
            Ok(None) => return Err("the file has no build id".into()),
            Err(e) => return Err(format!("the answer cannot be read as a debug file: {e}")),
        }
        fs::rename(&part.path, &path).map_err(cannot)?;
        Ok(bytes)
    }
}

/// Copies the response body. Errors of the server and of the disk have different messages.
fn copy(
    mut body: impl Read,
    mut file: &File,
    cannot: impl Fn(io::Error) -> String,
) -> Result<u64, String> {
    let mut buf = vec![0; 64 << 10];
    let mut bytes = 0;
    loop {
        let n = match body.read(&mut buf) {
            Ok(0) => return Ok(bytes),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(format!("the answer broke off after {bytes} bytes: {e}")),
        };
        file.write_all(&buf[..n]).map_err(&cannot)?;
        bytes += n as u64;
    }
}

/// An incomplete file. It is removed on drop, unless it was renamed.
struct PartialFile {
    path: PathBuf,
    file: File,
}

impl PartialFile {
    fn create(dir: &Path) -> io::Result<PartialFile> {
        let path = dir.join(format!("debuginfo.{}", std::process::id()));
        // Left by a killed process with the same pid. Only one thread of this process writes here.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(PartialFile { path, file })
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            // Removes the directory only if it is empty.
            let _ = fs::remove_dir(dir);
        }
    }
}
