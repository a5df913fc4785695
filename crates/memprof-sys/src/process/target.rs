//! A process that the user names, by its id or its name.

use anyhow::{Result, bail};

use super::{Presence, find};
use crate::ids::Pid;

/// The process that `memprof maps` or `memprof heap` inspects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessTarget {
    /// The process with this id.
    Pid(Pid),
    /// The process with this name.
    Comm(String),
}

impl ProcessTarget {
    /// Finds the process.
    ///
    /// # Errors
    /// No process has the name, or several have.
    pub fn process(&self) -> Result<Pid> {
        match self {
            ProcessTarget::Pid(pid) => Ok(*pid),
            ProcessTarget::Comm(name) => match find(name, false)? {
                Some(found) => Ok(found.pid),
                None => {
                    let lists = "`ps -e` lists the names of all processes";
                    let helps = Presence::overlooked().unwrap_or(lists);
                    bail!("no process is named {name}; {helps}")
                }
            },
        }
    }
}
