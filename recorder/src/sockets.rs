//! Processes that listen at a port, in any network namespace.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The processes that listen at a TCP port, in ascending order.
pub fn listeners(port: u16) -> Vec<u32> {
    let processes = processes();
    let mut namespaces = HashSet::new();
    let mut sockets = HashSet::new();
    for pid in &processes {
        // A namespace's sockets are in the files of each of its processes.
        let Ok(namespace) = fs::metadata(format!("/proc/{pid}/ns/net")) else {
            continue;
        };
        if namespaces.insert(namespace.ino()) {
            for file in ["tcp", "tcp6"] {
                let table = fs::read_to_string(format!("/proc/{pid}/net/{file}"));
                sockets.extend(listening_sockets(&table.unwrap_or_default(), port));
            }
        }
    }
    let holds = |pid: &u32| !sockets.is_empty() && holds_one(*pid, &sockets);
    processes.into_iter().filter(holds).collect()
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let mut pids: Vec<u32> = names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// Inode numbers of the sockets that listen at a port, from lines `N: ADDRESS:PORT ADDRESS:PORT STATE …`.
fn listening_sockets(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let inode = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let wanted = u16::from_str_radix(local, 16) == Ok(port) && fields.get(3) == Some(&LISTEN);
        fields.get(9).filter(|_| wanted)?.parse().ok()
    };
    table.lines().filter_map(inode).collect()
}

fn holds_one(pid: u32, sockets: &HashSet<u64>) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let files = entries.into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| {
        let inode = link.to_str().and_then(|text| {
            let number = text.strip_prefix("socket:[")?.strip_suffix(']')?;
            number.parse().ok()
        });
        inode.is_some_and(|inode| sockets.contains(&inode))
    })
}
