//! The directory of a memprof that is killed, and what is in it afterwards.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::memprof::BINARY;
use crate::faults::kernel_objects::files_in;

pub const OLD: &str = "of yesterday";

/// A directory for everything that memprof writes: an output, its socket, the library, and its caches.
pub struct WorkDirectory(pub TempDir);

impl WorkDirectory {
    pub fn new() -> WorkDirectory {
        let place = WorkDirectory(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        fs::write(place.0.path().join("profile.json"), OLD).unwrap();
        place
    }

    pub fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A memprof that writes here.
    pub fn memprof(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.env("TMPDIR", self.0.path());
        command.args(["--stacks", "all"]).args(args);
        command.args(["-o", &self.at("profile.json")]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// The output is what it was, and nothing is beside it but what the next memprof replaces.
    #[track_caller]
    pub fn has_only(&self, others: &[&str]) {
        assert_eq!(fs::read_to_string(self.at("profile.json")).unwrap(), OLD);
        let mut names = files_in(self.0.path());
        names.retain(|name| name != "profile.json" && !others.contains(&name.as_str()));
        assert_eq!(names, [""; 0]);
    }
}
