//! The control groups that the programs are attached to, kept up to date: a service that restarts gets a new one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use memprof_sys::procfs;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::{CaptureError, Target};
use crate::wire::RecorderSkel;
use crate::{cgroups, sockets};

/// A control group whose packets are seen. The kernel detaches the programs when the links are closed, however that happens.
#[derive(Debug)]
struct Attached {
    directory: PathBuf,
    inode: u64,
    _links: [Link; 2],
}

/// A target, and the control groups where it was last.
#[derive(Debug)]
struct TargetState {
    target: Target,
    groups: Vec<PathBuf>,
    problem: Option<String>,
}

/// The control groups of all targets.
#[derive(Debug)]
pub(super) struct Attachments {
    mount: PathBuf,
    targets: Vec<TargetState>,
    attached: Vec<Attached>,
    /// Why the programs could not be attached to a group that exists.
    refused: Option<String>,
    inotify: Inotify,
    /// When to look again without being told.
    next: Instant,
    /// True if the programs number processes as the recorder does.
    same_pids: bool,
}

impl Attachments {
    /// Time between looks for a target that is missing.
    const RETRY: Duration = Duration::from_secs(1);
    /// Time between looks otherwise: a process can move to another group.
    const RECHECK: Duration = Duration::from_secs(5);

    pub fn new(targets: &[Target]) -> Result<Self, CaptureError> {
        let mount =
            cgroups::mount().map_err(|e| CaptureError::io("cannot find the control groups", e))?;
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        let inotify = Inotify::init(flags)
            .map_err(|e| CaptureError::io("cannot watch directories (inotify)", e.into()))?;
        let states = targets.iter().map(|target| TargetState {
            target: target.clone(),
            groups: Vec::new(),
            problem: None,
        });
        Ok(Self {
            mount,
            targets: states.collect(),
            attached: Vec::new(),
            refused: None,
            inotify,
            next: Instant::now(),
            same_pids: procfs::in_initial_pid_namespace() == Some(true),
        })
    }

    /// Readable when a control group was made or removed near the targets.
    pub fn changes(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// The directories that the programs are attached to.
    pub fn directories(&self) -> Vec<PathBuf> {
        let attached = self.attached.iter();
        attached.map(|one| one.directory.clone()).collect()
    }

    /// Why targets are not recorded now.
    pub fn problems(&self) -> Vec<String> {
        let problems = self
            .targets
            .iter()
            .filter_map(|state| state.problem.clone());
        problems.collect()
    }

    /// Why the kernel does not let the programs be attached, if so.
    pub fn refused(&self) -> Option<String> {
        self.refused.clone()
    }

    /// Looks for the targets again if directories have changed or it is time to.
    pub fn keep(&mut self, skel: &RecorderSkel<'_>) {
        let changed = self.inotify.read_events().is_ok();
        if changed || Instant::now() >= self.next {
            self.refresh(skel);
        }
    }

    /// A process listens at the port of a target.
    pub fn listens(&mut self, skel: &RecorderSkel<'_>, port: u16, pid: u32) {
        if !self.same_pids {
            self.refresh(skel);
            return;
        }
        let Ok(group) = cgroups::of_process(&self.mount, pid) else {
            return;
        };
        for state in &mut self.targets {
            if matches!(state.target, Target::Port(wanted) if wanted == port) {
                state.listens_in(&group);
            }
        }
        self.attach(skel);
    }

    /// Looks for all targets, attaches the programs where they are, and detaches them where they are no more.
    pub fn refresh(&mut self, skel: &RecorderSkel<'_>) {
        for state in &mut self.targets {
            state.find(&self.mount, self.same_pids);
        }
        self.attach(skel);
        let missing = self.targets.iter().any(|state| state.problem.is_some());
        let pause = if missing { Self::RETRY } else { Self::RECHECK };
        self.next = Instant::now() + pause;
    }

    fn attach(&mut self, skel: &RecorderSkel<'_>) {
        self.refused = None;
        let wanted: Vec<_> = self.wanted();
        self.attached.retain(|one| {
            wanted.contains(&one.directory) && inode(&one.directory).ok() == Some(one.inode)
        });
        for directory in wanted {
            self.watch(&directory);
            if self.attached.iter().any(|one| one.directory == directory) {
                continue;
            }
            match attach(skel, &self.mount, &directory) {
                Ok(attached) => self.attached.push(attached),
                Err(e) => self.report(&directory, &e),
            }
        }
    }

    /// The groups to attach to. The programs see those below, too: in both, they would send everything twice.
    fn wanted(&self) -> Vec<PathBuf> {
        let groups = || self.targets.iter().flat_map(|state| &state.groups);
        let is_top =
            |group: &&PathBuf| !groups().any(|other| other != *group && group.starts_with(other));
        let mut wanted: Vec<_> = groups().filter(is_top).cloned().collect();
        wanted.sort();
        wanted.dedup();
        wanted
    }

    /// Watches the directory that the group's directory is made in.
    fn watch(&self, directory: &Path) {
        let flags =
            AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_TO;
        let parents = directory.ancestors().skip(1);
        for parent in parents.take_while(|parent| parent.starts_with(&self.mount)) {
            if self.inotify.add_watch(parent, flags).is_ok() {
                return;
            }
        }
    }

    fn report(&mut self, directory: &Path, error: &CaptureError) {
        // A group that does not exist may come later.
        if matches!(error, CaptureError::Bpf { .. } | CaptureError::Refused(_)) {
            self.refused = Some(error.to_string());
        }
        for state in &mut self.targets {
            if state
                .groups
                .iter()
                .any(|group| group.starts_with(directory))
            {
                state.problem = Some(format!("{}: {error}", state.target));
            }
        }
    }
}

impl TargetState {
    /// Looks for the target. If it is nowhere, its last control groups are kept: connections of a node that has stopped to listen go on.
    /// Processes that begin to listen are `told` by the programs; to search for them takes long on hosts with many sockets.
    fn find(&mut self, mount: &Path, told: bool) {
        let is_there = self.groups.iter().any(|group| group.is_dir());
        if is_there && told && matches!(self.target, Target::Port(_)) {
            self.groups.retain(|group| group.is_dir());
            self.problem = None;
            return;
        }
        let found = match &self.target {
            Target::Cgroup(path) => vec![mount.join(path)],
            Target::Unit(unit) => cgroups::of_unit(mount, unit).into_iter().collect(),
            Target::Process(pid) => groups_of(mount, &[*pid]),
            Target::Port(port) => groups_of(mount, &sockets::listeners(*port)),
        };
        self.problem = None;
        if !found.is_empty() {
            self.groups = found;
        } else if self.groups.is_empty() {
            self.problem = Some(format!("{}: not found", self.target));
        }
    }

    /// A process of this group listens at the target's port. Others may do so, too, each in a network namespace of its own.
    fn listens_in(&mut self, group: &Path) {
        self.groups.retain(|known| known.is_dir());
        if !self.groups.iter().any(|known| known == group) {
            self.groups.push(group.to_path_buf());
        }
    }
}

fn groups_of(mount: &Path, pids: &[u32]) -> Vec<PathBuf> {
    let groups = pids.iter().map(|pid| cgroups::of_process(mount, *pid));
    groups.filter_map(Result::ok).collect()
}

fn inode(directory: &Path) -> io::Result<u64> {
    fs::metadata(directory).map(|metadata| metadata.ino())
}

fn attach(
    skel: &RecorderSkel<'_>,
    mount: &Path,
    directory: &Path,
) -> Result<Attached, CaptureError> {
    let shown = directory.display();
    let open = |e| CaptureError::io(&format!("cannot open the control group {shown}"), e);
    let file = fs::File::open(directory).map_err(open)?;
    let inode = file.metadata().map_err(open)?.ino();
    if let Err(e) = cgroups::check(directory) {
        let mount = mount.display();
        return Err(CaptureError::Refused(format!(
            "cannot attach to {shown}: {e}; give one below {mount}, or a `unit`, `pid` or `port`"
        )));
    }
    let attach = |program: &libbpf_rs::ProgramMut<'_>| {
        let link = program.attach_cgroup(file.as_raw_fd());
        link.map_err(|e| {
            CaptureError::bpf(&format!("cannot attach to the control group {shown}"), e)
        })
    };
    Ok(Attached {
        directory: directory.to_path_buf(),
        inode,
        _links: [
            attach(&skel.progs.packet_sent)?,
            attach(&skel.progs.packet_received)?,
        ],
    })
}
