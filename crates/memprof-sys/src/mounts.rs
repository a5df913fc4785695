//! Parses `/proc/PID/mountinfo`: the mounts that a process sees.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number of the mount.
    pub id: u64,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Which directory of the file system is mounted.
    pub root: PathBuf,
    /// Where it is mounted, in the file tree of the process.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The options of the file system itself.
    pub options: String,
}

/// The mounts in a text, in its order: of several on one directory, the last is seen.
pub fn parse(text: &[u8]) -> impl Iterator<Item = Mount> {
    text.split(|byte| *byte == b'\n').filter_map(mount)
}

/// A line is `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS…] - TYPE SOURCE OPTIONS`.
fn mount(line: &[u8]) -> Option<Mount> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    let (root, point) = (path(fields.next()?), path(fields.next()?));
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    Some(Mount {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        point,
        kind: text(fields.next()?),
        options: text(fields.nth(1)?),
    })
}

/// The kernel writes spaces, tabs, newlines and backslashes as octal numbers: `\040`.
fn path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_escapes_and_optional_fields() {
        let text = b"36 35 254:0 /root\\040x /a\\040-\\040b\\134c rw,noatime master:1 x - ext4 /dev/vda rw,data=y\n\
            1 1 0:2 / / rw - rootfs none rw\n";
        let mount = |id, device, root: &str, point: &str, kind: &str, options: &str| Mount {
            id,
            device,
            root: root.into(),
            point: point.into(),
            kind: kind.into(),
            options: options.into(),
        };
        let wanted = [
            mount(36, (254, 0), "/root x", "/a - b\\c", "ext4", "rw,data=y"),
            mount(1, (0, 2), "/", "/", "rootfs", "rw"),
        ];
        assert_eq!(parse(text).collect::<Vec<_>>(), wanted);
        assert_eq!(path(b"\\9 \\04"), PathBuf::from("\\9 \\04"));
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        for bad in [
            &b""[..],
            b"garbage",
            b"36 35 254:0 /",
            b"36 35 x:0 / / rw - tmpfs x rw",
            b"1 2 3 - tmpfs",
            b"36 35 1:2 / / rw tmpfs x rw",
        ] {
            assert_eq!(parse(bad).next(), None);
        }
    }
}
