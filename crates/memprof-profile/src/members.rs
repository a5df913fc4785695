//! Uniform access to the processes of a profile, whether it has one or several.

use std::borrow::Cow;

use super::{Amounts, Peak, ProcessProfile, Profile};
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// One process of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The process.
    pub pid: Pid,
    /// The process name.
    pub comm: &'a str,
    /// The container; `None` if unknown.
    pub container: Option<&'a Container>,
    /// The memory of the process.
    pub total: &'a Amounts,
    /// The process's own peak; `None` if it is unknown.
    pub peak: Option<Peak>,
    of: &'a Profile,
    share: Option<&'a ProcessProfile>,
}

impl<'a> Member<'a> {
    fn new(profile: &'a Profile, share: &'a ProcessProfile) -> Member<'a> {
        Member {
            pid: share.pid,
            comm: &share.comm,
            container: share.container.as_ref(),
            total: &share.total,
            peak: share.peak,
            of: profile,
            share: Some(share),
        }
    }

    /// The profile of this process, without places.
    pub fn figures(&self) -> Cow<'a, Profile> {
        match self.share {
            Some(share) => Cow::Owned(self.of.figures_of(&[share])),
            None => Cow::Borrowed(self.of),
        }
    }
}

impl Profile {
    /// The processes, in the order of `target.pids`.
    pub fn members(&self) -> Vec<Member<'_>> {
        let only = Member {
            pid: self.target.pid,
            comm: &self.target.comm,
            container: None,
            total: &self.total,
            peak: self.own_peak,
            of: self,
            share: None,
        };
        match &self.processes[..] {
            [] => vec![only],
            shares => shares
                .iter()
                .map(|share| Member::new(self, share))
                .collect(),
        }
    }
}
