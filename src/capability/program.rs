//! Why a program's file cannot be opened though its process may be inspected: its file system refuses it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::event::Pid;
use crate::proc_dir;

/// Says what memprof lacks without the file, and what to do.
pub(super) fn unreadable(pid: Pid, why: &str) -> String {
    let path = proc_dir::link(pid, "exe").unwrap_or_default();
    let mounts = proc_dir::read(pid, "mountinfo").unwrap_or_default();
    let kind = file_system(&mounts, &path).unwrap_or_else(|| "unknown".to_owned());
    let helps = match kind.starts_with("fuse") {
        true => {
            "only the user who mounted it may read it; mount it with `-o allow_other`, or start the program from another file \
             system (an AppImage: `--appimage-extract`, then squashfs-root/AppRun)"
        }
        false => {
            "run memprof as a user who may read it, or start the program from another file system"
        }
    };
    format!(
        "cannot open its program {}: {why}. Stacks and the names of exported functions come from its memory, other functions \
         have no names. It is on a file system of type {kind}: {helps}",
        path.display()
    )
}

/// The type of the file system that a path is on, in a text like that of `/proc/PID/mountinfo`.
fn file_system(mounts: &[u8], path: &Path) -> Option<String> {
    let mounts = mounts.split(|byte| *byte == b'\n').filter_map(mount);
    // (Of several mounts on one directory, the last is seen.)
    let on = mounts.filter(|(point, _)| path.starts_with(OsStr::from_bytes(point)));
    let (_, kind) = on.max_by_key(|(point, _)| point.len())?;
    Some(String::from_utf8_lossy(kind).into_owned())
}

/// Directory and type of a line.
fn mount(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescape(fields.nth(4)?);
    let mut fields = fields.skip_while(|field| *field != b"-");
    Some((point, fields.nth(1)?))
}

/// Decodes the bytes that the kernel writes as `\` and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut parts = text.split(|byte| *byte == b'\\');
    let mut decoded = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(3));
        let value = digits.iter().fold(0, |sum: u32, digit| {
            sum * 8 + u32::from(digit.wrapping_sub(b'0') & 7)
        });
        decoded.push(value as u8);
        decoded.extend(rest);
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            36 21 0:40 / /tmp/.mount\\040x rw,nosuid - fuse.squashfuse squashfuse ro\n\
            37 21 0:41 / /tmp rw - tmpfs tmpfs rw\n\
            nonsense\n";
        let of = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(of("/tmp/.mount x/app").as_deref(), Some("fuse.squashfuse"));
        assert_eq!(of("/tmp/.mount x2/app").as_deref(), Some("tmpfs"));
        assert_eq!(of("/usr/bin/app").as_deref(), Some("ext4"));
        assert_eq!(of("app"), None);
    }
}
