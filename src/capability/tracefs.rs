//! Where tracefs is, and whether it can be read.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::mount::{MsFlags, mount};

/// Where tracefs is looked for, by libbpf as well.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// What was found of tracefs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tracefs {
    /// This directory shows its events.
    Shown(PathBuf),
    /// It is mounted here, or may be, and cannot be read: why.
    Unreadable(PathBuf, String),
    /// It is mounted here and has no events.
    WithoutEvents(PathBuf),
    /// It is not mounted.
    Absent,
}

impl Tracefs {
    /// Looks for it.
    pub fn find() -> Tracefs {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Tracefs::among(PLACES.map(Path::new), &mounts)
    }

    fn among<'a>(places: impl IntoIterator<Item = &'a Path>, mounts: &str) -> Tracefs {
        let mut found = Tracefs::Absent;
        for place in places {
            let here = match fs::read_dir(place.join("events")) {
                Ok(_) => return Tracefs::Shown(place.into()),
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    Tracefs::Unreadable(place.into(), e.to_string())
                }
                Err(_) if is_mounted(mounts, place, &["tracefs"]) => {
                    Tracefs::WithoutEvents(place.into())
                }
                Err(_) => continue,
            };
            // A directory of debugfs that cannot be entered shows nothing about tracefs; one that is
            // mounted does.
            if found == Tracefs::Absent && is_mounted(mounts, place, &["tracefs", "debugfs"]) {
                found = here;
            }
        }
        found
    }

    /// The directory with its events, if they can be read.
    pub fn shown(&self) -> Option<&Path> {
        match self {
            Tracefs::Shown(dir) => Some(dir),
            _ => None,
        }
    }
}

/// Whether a file system of one of these types is mounted at the place or right above it, by the text of
/// `/proc/self/mounts`.
fn is_mounted(mounts: &str, place: &Path, types: &[&str]) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind) = (fields.next(), fields.next());
        let at = at.map(Path::new);
        kind.is_some_and(|kind| types.contains(&kind))
            && (at == Some(place) || at == place.parent())
    })
}

/// The directory with tracefs' `events`; mounts tracefs at `/sys/kernel/tracing` when it is not mounted,
/// and says so on stderr. The mount stays.
///
/// # Errors
/// When tracefs cannot be read, or is not mounted and cannot be: what was tried, and what to do.
pub fn ensure_tracefs() -> anyhow::Result<PathBuf> {
    match Tracefs::find() {
        Tracefs::Shown(dir) => return Ok(dir),
        Tracefs::Unreadable(dir, why) => bail!(
            "tracefs at {} cannot be read: {why}; run memprof as root, or give it \
             CAP_DAC_READ_SEARCH",
            dir.display()
        ),
        Tracefs::WithoutEvents(dir) => return Err(without_events(&dir)),
        Tracefs::Absent => {}
    }
    let dir = Path::new(PLACES[0]);
    let no_data: Option<&str> = None;
    mount(
        Some("nodev"),
        dir,
        Some("tracefs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        no_data,
    )
    .with_context(|| {
        format!(
            "tracefs is mounted neither at /sys/kernel/tracing nor at /sys/kernel/debug/tracing, \
             and mounting it at {} failed; as root: mount -t tracefs nodev {0}; in a container add \
             -v /sys/kernel/debug:/sys/kernel/debug",
            dir.display()
        )
    })?;
    eprintln!("memprof: mounted tracefs at {}", dir.display());
    match Tracefs::find() {
        Tracefs::Shown(dir) => Ok(dir),
        Tracefs::Unreadable(dir, why) => {
            bail!("tracefs at {} cannot be read: {why}", dir.display())
        }
        Tracefs::WithoutEvents(_) | Tracefs::Absent => Err(without_events(dir)),
    }
}

fn without_events(dir: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "tracefs is mounted at {}, but shows no events directory: the kernel needs \
         CONFIG_FTRACE=y and CONFIG_EVENT_TRACING=y",
        dir.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: &Path, kind: &str) -> Tracefs {
        let mounts = format!(
            "proc /proc proc rw 0 0\nx {} {kind} rw 0 0\n",
            place.display()
        );
        Tracefs::among([place], &mounts)
    }

    #[test]
    fn events_that_are_shown_are_enough() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(found(dir.path(), "ext4"), Tracefs::Absent);
        let empty = Tracefs::WithoutEvents(dir.path().into());
        assert_eq!(found(dir.path(), "tracefs"), empty);
        fs::create_dir(dir.path().join("events")).unwrap();
        let shown = Tracefs::Shown(dir.path().into());
        assert_eq!(Tracefs::among([dir.path()], ""), shown);
    }

    #[test]
    fn what_is_mounted_there_or_above_counts() {
        let mounts = "a /sys/kernel/debug debugfs rw 0 0\nb /sys/kernel tracefs rw 0 0\n";
        let is = |place: &str, types: &[&str]| is_mounted(mounts, Path::new(place), types);
        assert!(is("/sys/kernel/debug/tracing", &["debugfs"]));
        assert!(!is("/sys/kernel/debug/tracing", &["tracefs"]));
        assert!(!is("/sys/kernel/tracing", &["debugfs"]));
    }
}
