//! The identity files of the nodes, which may come later than the nodes: a proof of work takes minutes.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use zeroize::Zeroizing;

use crate::connection::{Node, Nodes};
use crate::p2p::identity::Identity;
use crate::p2p::pow::Target;

/// Maximum size of an identity file, in bytes.
const MAX_SIZE: u64 = 64 << 10;

/// The identity file of a node.
#[derive(Debug)]
pub struct IdentityFile {
    name: String,
    path: PathBuf,
    target: Target,
    read: Option<SystemTime>,
    known: Result<Arc<Node>, String>,
}

impl IdentityFile {
    /// The identity of the node `name`, whose peers should have proofs of work of `target`. Nothing is read yet.
    pub fn new(name: String, path: PathBuf, target: Target) -> Self {
        Self {
            name,
            path,
            target,
            read: None,
            known: Err("not read yet".into()),
        }
    }

    /// Reads the file again if it has changed. Returns true if the identity is another one now. An identity that is known remains
    /// if the file disappears, or is being written.
    pub fn look(&mut self) -> bool {
        let found = self.read();
        match (found, &self.known) {
            (Ok(Some(node)), known) => {
                let new = known.as_ref().map(|known| *known.identity.public_key());
                let changed = new.ok() != Some(*node.identity.public_key());
                self.known = Ok(node);
                changed
            }
            (Err(reason), Err(_)) => {
                self.known = Err(format!("{}: {reason}", self.path.display()));
                false
            }
            _ => false,
        }
    }

    /// The node, if the file has changed since it was read.
    fn read(&mut self) -> Result<Option<Arc<Node>>, String> {
        let text = |e: io::Error| e.to_string();
        let file = File::open(&self.path).map_err(text)?;
        let modified = file.metadata().and_then(|m| m.modified()).map_err(text)?;
        if self.read == Some(modified) && self.known.is_ok() {
            return Ok(None);
        }
        // All at once: a growing string would leave copies of the key in freed memory.
        let mut content = Zeroizing::new(Vec::with_capacity(MAX_SIZE as usize + 1));
        let mut limited = file.take(MAX_SIZE + 1);
        limited.read_to_end(&mut content).map_err(text)?;
        if content.len() as u64 > MAX_SIZE {
            return Err(format!(
                "larger than {} KiB: no identity file",
                MAX_SIZE >> 10
            ));
        }
        let json = str::from_utf8(&content).map_err(|e| e.to_string())?;
        let identity = Identity::parse(json).map_err(|e| e.to_string())?;
        self.read = Some(modified);
        Ok(Some(Arc::new(Node {
            name: self.name.clone(),
            identity,
            target: self.target,
        })))
    }

    /// Name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node, or why its identity is not known.
    pub fn known(&self) -> Result<&Arc<Node>, &str> {
        self.known.as_ref().map_err(|reason| &reason[..])
    }
}

/// The nodes of these files.
pub fn nodes(files: &[IdentityFile]) -> Nodes {
    let known = files.iter().filter_map(|file| file.known.as_ref().ok());
    Nodes {
        known: known.cloned().collect(),
        awaited: files.iter().any(|file| file.known.is_err()),
    }
}
