//! The processes of a profile, whether it has one or several.

use std::borrow::Cow;

use super::{Amounts, Profile, Share};
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// One of a profile's processes.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub comm: &'a str,
    /// Where it runs; `None` if that is not known.
    pub container: Option<&'a Container>,
    /// What it holds.
    pub total: &'a Amounts,
    of: &'a Profile,
    share: Option<&'a Share>,
}

impl<'a> Member<'a> {
    fn of(profile: &'a Profile, share: &'a Share) -> Member<'a> {
        Member {
            pid: share.pid,
            comm: &share.comm,
            container: share.container.as_ref(),
            total: &share.total,
            of: profile,
            share: Some(share),
        }
    }

    /// Its own profile, without places.
    pub fn figures(&self) -> Cow<'a, Profile> {
        match self.share {
            Some(share) => Cow::Owned(self.of.figures_of(&[share])),
            None => Cow::Borrowed(self.of),
        }
    }
}

impl Profile {
    /// Its processes, in the order of `target.pids`.
    pub fn members(&self) -> Vec<Member<'_>> {
        let only = Member {
            pid: self.target.pid,
            comm: &self.target.comm,
            container: None,
            total: &self.total,
            of: self,
            share: None,
        };
        match &self.processes[..] {
            [] => vec![only],
            shares => shares.iter().map(|share| Member::of(self, share)).collect(),
        }
    }
}
