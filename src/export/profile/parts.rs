//! Parts of a complete report that refer to stacks by number: processes, files, errors.

use std::collections::HashMap;
use std::sync::Arc;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::{Bytes, Kernel, Numbers, Places};
use memprof_profile::{self as profile, CachedFile, ProcessProfile, Profile, Sample, saved};

/// A list whose items have the same form for writing and reading.
pub(super) struct Each<'a, T>(pub &'a [T]);

impl Serialize for Each<'_, profile::Uncertainty> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(saved::Uncertainty::from))
    }
}

impl Serialize for Each<'_, profile::Mapping> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(saved::Mapping::from))
    }
}

/// Numbers of stacks: the stacks of samples by position, then all others.
pub(super) struct StackNumbers<'a> {
    numbers: HashMap<*const profile::Stack, usize>,
    others: Vec<&'a profile::Stack>,
}

impl<'a> StackNumbers<'a> {
    pub(super) fn new(profile: &'a Profile) -> StackNumbers<'a> {
        let samples = profile.samples.iter().enumerate();
        let mut numbers: HashMap<_, _> = samples
            .map(|(at, sample)| (Arc::as_ptr(&sample.stack), at))
            .collect();
        let (mut others, first) = (Vec::new(), profile.samples.len());
        for sample in profile.all_samples() {
            numbers
                .entry(Arc::as_ptr(&sample.stack))
                .or_insert_with(|| {
                    others.push(&*sample.stack);
                    first + others.len() - 1
                });
        }
        StackNumbers { numbers, others }
    }
}

/// Pairs of a stack number and bytes.
struct ByNumber<'a>(&'a StackNumbers<'a>, &'a [Sample]);

impl Serialize for ByNumber<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let number = |sample: &Sample| self.0.numbers[&Arc::as_ptr(&sample.stack)];
        s.collect_seq(self.1.iter().map(|x| (number(x), Bytes(&x.amounts))))
    }
}

/// Stacks that no sample has.
pub(super) struct OtherStacks<'a> {
    pub(super) places: &'a Places,
    pub(super) stacks: &'a StackNumbers<'a>,
}

impl Serialize for OtherStacks<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Other<'a> {
            outcome: &'a str,
            frames: Numbers<'a>,
        }
        s.collect_seq(self.stacks.others.iter().map(|stack| Other {
            outcome: stack.outcome.label(),
            frames: Numbers(self.places, &stack.frames),
        }))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Process<'a> {
    pid: u32,
    comm: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<saved::ContainerLabels>,
    stacks: ByNumber<'a>,
    not_observed: NotObserved<'a>,
    total: Bytes<'a>,
    uncertainties: Each<'a, profile::Uncertainty>,
    kernel_before: Kernel<'a>,
    kernel_after: Kernel<'a>,
    freeze: saved::Freeze,
}

/// The share of each process.
pub(super) struct Processes<'a> {
    pub(super) stacks: &'a StackNumbers<'a>,
    pub(super) profile: &'a Profile,
}

impl Serialize for Processes<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(
            self.profile
                .processes
                .iter()
                .map(|share: &ProcessProfile| Process {
                    pid: share.pid.0,
                    comm: &share.comm,
                    place: share.container.as_ref().map(Into::into),
                    stacks: ByNumber(self.stacks, &share.samples),
                    not_observed: NotObserved(&share.not_observed),
                    total: Bytes(&share.total),
                    uncertainties: Each(&share.uncertainties),
                    kernel_before: Kernel(&share.kernel_before),
                    kernel_after: Kernel(&share.kernel_after),
                    freeze: (&share.freeze).into(),
                }),
        )
    }
}

/// Processes that have ended.
#[derive(Serialize)]
pub(super) struct Ended<'a> {
    processes: Vec<EndedProcess<'a>>,
    unscanned: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndedProcess<'a> {
    pid: u32,
    comm: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<saved::ContainerLabels>,
    total: Bytes<'a>,
    scanned_unix_ms: u64,
    ended_unix_ms: u64,
}

impl<'a> Ended<'a> {
    /// Converts the processes; `None` if there are none.
    pub(super) fn from_ended(ended: &'a profile::Ended) -> Option<Ended<'a>> {
        let process = |process: &'a profile::EndedProcess| EndedProcess {
            pid: process.pid.0,
            comm: &process.comm,
            place: process.container.as_ref().map(Into::into),
            total: Bytes(&process.total),
            scanned_unix_ms: saved::unix_ms(process.scanned),
            ended_unix_ms: saved::unix_ms(process.ended),
        };
        let any = ended.unscanned > 0 || !ended.processes.is_empty();
        any.then(|| Ended {
            processes: ended.processes.iter().map(process).collect(),
            unscanned: ended.unscanned,
        })
    }
}

/// Files in the page cache, with the stacks that brought in their pages.
pub(super) struct Files<'a> {
    pub(super) stacks: &'a StackNumbers<'a>,
    pub(super) profile: &'a Profile,
}

impl Serialize for Files<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct File<'a> {
            device: (u32, u32),
            inode: u64,
            path: Option<saved::Path>,
            stacks: ByNumber<'a>,
            lost: u64,
        }
        let files = &self.profile.places.files;
        let mut rows = s.serialize_seq(Some(files.len()))?;
        for file in files {
            let CachedFile {
                id,
                path,
                samples,
                lost,
            } = file;
            rows.serialize_element(&File {
                device: id.dev,
                inode: id.ino,
                path: path.as_ref().map(saved::Path::from),
                stacks: ByNumber(self.stacks, samples),
                lost: *lost,
            })?;
        }
        rows.end()
    }
}

#[derive(Serialize)]
struct Lost<'a> {
    bytes: Bytes<'a>,
    mapping: &'a str,
    reason: &'a str,
}

/// Memory without a stack.
pub(super) struct NotObserved<'a>(pub &'a [profile::NotObserved]);

impl Serialize for NotObserved<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(|row| Lost {
            bytes: Bytes(&row.amounts),
            mapping: &row.mapping,
            reason: row.reason.label(),
        }))
    }
}
