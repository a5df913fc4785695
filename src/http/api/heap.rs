//! `/v2/heap`: takes and stores heap snapshots of followed processes.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::millis;
use super::overview::HeapCard;
use super::query::bad;
use super::reply::{self, JSON, internal};
use super::request::RequestContext;
use super::store::{self, Keepable, KeptList, MAX_ENTRIES, checked_name};
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use memprof_heap::{Approach, ByStack, GrownBy, Heap, HeapOptions, HeapSnapshot, SnapshotFigures};
use memprof_sys::ids::Pid;

/// Maximum bytes of all stored snapshots together, as JSON.
const MAX_BYTES: usize = 8 << 20;

/// Default and maximum number of listed chunks and other individual items.
const TOP: usize = 100;
const MAX_TOP: usize = 1000;
/// Maximum number of stacks listed per snapshot, because names in a stack have no length limit.
const MAX_STACKS: usize = 200;
/// Maximum stop that a request may allow, in milliseconds.
const LONGEST_STOP: u64 = 10_000;

/// Maximum number of process ids in a message.
const NAMED: usize = 8;

/// A stored snapshot.
#[derive(Clone)]
pub(super) struct StoredSnapshot {
    pub(super) info: Info,
    /// The snapshot as JSON.
    pub(super) json: Bytes,
    /// The tables by stack, as JSON, with their names: see [`Whole`].
    by_stack: Vec<(&'static str, Bytes)>,
}

impl StoredSnapshot {
    fn bytes(&self) -> usize {
        let tables = self.by_stack.iter().map(|(_, json)| json.len());
        self.json.len() + tables.sum::<usize>()
    }

    /// A table by stack, as JSON.
    pub(super) fn table(&self, name: &str) -> &[u8] {
        let mut tables = self.by_stack.iter();
        tables
            .find(|(known, _)| *known == name)
            .map_or(b"null", |(_, json)| json)
    }
}

/// An entry in the list of snapshots.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "HeapInfo")]
pub(super) struct Info {
    /// Id of the snapshot.
    id: String,
    /// Name given by the client.
    name: Option<String>,
    /// When the process was stopped, or shortly after, in milliseconds since 1970-01-01 UTC.
    taken: u64,
    /// Process id.
    pid: u32,
    /// Name of the process.
    comm: String,
    /// How long the process, or one of its threads, was stopped in all, in microseconds.
    stopped_us: u64,
    /// Bytes that were copied meanwhile.
    copied: u64,
    /// glibc, jemalloc or the name of another allocator (the one with most in use), or refused (a heap was found, and a check failed), or
    /// unknown; others may come.
    allocator: &'static str,
    /// Why the heap was not read; null if it was read, or if no allocator is known.
    refused: Option<String>,
    /// What the snapshot says, in sentences, the most important first.
    verdict: Vec<String>,
    #[serde(flatten)]
    figures: SnapshotFigures,
}

impl Info {
    fn new(id: u64, name: Option<String>, taken: &HeapSnapshot) -> Info {
        let heap = &taken.heap;
        Info {
            id: id.to_string(),
            name,
            taken: millis(taken.taken),
            pid: heap.pid,
            comm: heap.comm.clone(),
            stopped_us: (heap.taken.stops_ms * 1e3) as u64,
            copied: heap.copied,
            allocator: heap.allocator_name(),
            refused: heap.refused().map(str::to_owned),
            verdict: heap.verdict(),
            figures: heap.into(),
        }
    }
}

/// A snapshot with all its tables.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "HeapSnapshot")]
pub(super) struct Whole<'a> {
    snapshot: Info,
    heap: &'a Heap,
    /// The stacks whose first touches brought in the heap's resident pages: who made the heap grow, not who owns
    /// the objects there. null if the heap was not read.
    grown_by: &'a Option<GrownBy>,
    /// The stacks whose first touches brought in the resident pages that contain only zeroes, in the heap or not. null if there
    /// are none.
    zero_by: &'a Option<GrownBy>,
    /// The heap by the stacks that allocated what is in use: estimates from samples, corrected by the snapshot.
    /// null if allocations are not sampled (--heap) or the heap was not read.
    by_stack: &'a Option<ByStack>,
}

/// Writes a snapshot that is not stored, in the form of `GET /v2/heap/{id}`, for exports.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn write_heap(taken: &HeapSnapshot, out: &mut dyn Write) -> io::Result<()> {
    let whole = Whole {
        snapshot: Info::new(1, None, taken),
        heap: &taken.heap,
        grown_by: &taken.grown_by,
        zero_by: &taken.zero_by,
        by_stack: &taken.by_stack,
    };
    Ok(serde_json::to_writer(out, &whole)?)
}

impl Keepable for StoredSnapshot {
    const NAME: &'static str = "heap snapshot";
    const PATH: &'static str = "/v2/heap";
    const MAX_BYTES: usize = MAX_BYTES;
}

/// The stored snapshots.
#[derive(Default)]
pub(super) struct Heaps(Mutex<KeptList<StoredSnapshot>>);

impl Heaps {
    fn lock(&self) -> MutexGuard<'_, KeptList<StoredSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The snapshot with this id.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub(super) fn get(&self, id: &str) -> Result<StoredSnapshot, ApiError> {
        self.lock().get(id).cloned()
    }

    /// Checks that one more snapshot of `bytes` bytes of JSON fits.
    fn check_room(&self, bytes: usize) -> Result<(), ApiError> {
        check_room(&self.lock(), bytes)
    }

    /// Stores a snapshot if it fits.
    fn add(&self, name: Option<String>, taken: &HeapSnapshot) -> Result<Info, ApiError> {
        let json = serde_json::to_vec(&taken.heap).map_err(internal)?;
        let tables = [
            ("grown_by", serde_json::to_vec(&taken.grown_by)),
            ("zero_by", serde_json::to_vec(&taken.zero_by)),
            ("by_stack", serde_json::to_vec(&taken.by_stack)),
        ];
        let tables = tables.into_iter();
        let by_stack = tables.map(|(name, json)| Ok((name, json.map_err(internal)?.into())));
        let mut info = Info::new(0, name, taken);
        let mut kept = StoredSnapshot {
            info: info.clone(),
            json: json.into(),
            by_stack: by_stack.collect::<Result<_, ApiError>>()?,
        };
        let mut list = self.lock();
        check_room(&list, kept.bytes())?;
        list.add(|number| {
            info.id = number.to_string();
            kept.info.id.clone_from(&info.id);
            kept
        });
        Ok(info)
    }
}

fn check_room(list: &KeptList<StoredSnapshot>, bytes: usize) -> Result<(), ApiError> {
    list.check_room(list.iter().map(StoredSnapshot::bytes).sum::<usize>() + bytes)
}

/// JSON body of a request to take a snapshot.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Params {
    name: Option<String>,
    /// The process, if several are followed.
    pid: Option<u32>,
    /// Maximum duration of the stop, in milliseconds; `--max-freeze` by default.
    max_stop: Option<u64>,
    top: Option<usize>,
}

#[derive(Debug)]
struct List;

#[derive(Debug)]
struct Take {
    name: Option<String>,
    pid: Option<Pid>,
    options: HeapOptions,
}

#[derive(Debug)]
struct Show(String);

#[derive(Debug)]
struct Forget(String);

/// `GET /v2/heap`.
pub(super) fn list(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(List))
}

/// `POST /v2/heap`.
pub(super) fn take(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    if !asked.local {
        let message = "a heap snapshot stops the target and takes as much memory as its heap, so only clients on this \
                       machine may request it: use a loopback address, without a proxy";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    let example = r#"{"name": "start", "max_stop": 200}"#;
    let wanted: Params = store::parameters(&asked.body, example)?;
    let between = |name: &str, value: u64, most: u64| match value {
        1.. if value <= most => Ok(()),
        _ => Err(bad(format!(
            "{name} must be a whole number from 1 to {most}, got {value}"
        ))),
    };
    if let Some(ms) = wanted.max_stop {
        between("max_stop, in milliseconds,", ms, LONGEST_STOP)?;
    }
    let top = wanted.top.unwrap_or(TOP);
    between("top", top as u64, MAX_TOP as u64)?;
    Ok(Arc::new(Take {
        name: checked_name(wanted.name)?,
        pid: wanted.pid.map(Pid),
        options: HeapOptions {
            max_stop: wanted.max_stop.map(Duration::from_millis),
            top,
            stacks: top.min(MAX_STACKS),
            approach: Approach::Auto,
            limit: "max_stop in the request",
            grown_by: true,
        },
    }))
}

/// `GET /v2/heap/{id}`.
pub(super) fn show(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    if !asked.local {
        let message = "this reply contains addresses, so only clients on this machine may request it: use a loopback address, without a proxy";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    Ok(Arc::new(Show(asked.name.to_owned())))
}

impl Api {
    /// The newest stored snapshot, of this process if one is given.
    pub(super) fn newest_heap(&self, of: Option<Pid>) -> Option<HeapCard> {
        let list = self.heaps.lock();
        let infos = list.iter().map(|kept| &kept.info);
        let newest = infos
            .filter(|info| of.is_none_or(|pid| info.pid == pid.0))
            .last()?;
        Some(HeapCard {
            id: newest.id.clone(),
            taken: newest.taken,
            pid: newest.pid,
            sentences: newest.verdict.clone(),
        })
    }
}

/// `DELETE /v2/heap/{id}`.
pub(super) fn forget(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(Forget(asked.name.to_owned())))
}

/// The stored snapshots.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "HeapSnapshots")]
pub(super) struct ListReply {
    /// All snapshots, oldest first.
    snapshots: Vec<Info>,
    /// Maximum number of snapshots.
    limit: usize,
}

impl Endpoint for List {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let list = api.heaps.lock();
            let snapshots = list.iter().map(|kept| kept.info.clone()).collect();
            reply::json(&ListReply {
                snapshots,
                limit: MAX_ENTRIES,
            })
        })
    }
}

impl Endpoint for Take {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            // Do not stop the target if the snapshot cannot be stored.
            api.heaps.check_room(0)?;
            let pid = followed(api, self.pid).await?;
            let taken = api.provider().heap(pid, self.options).await?;
            reply::created(&api.heaps.add(self.name.clone(), &taken)?)
        })
    }
}

/// The followed process that the request selects.
async fn followed(api: &Api, wanted: Option<Pid>) -> Result<Pid, ApiError> {
    let pids = match api.provider().status().await {
        Some(status) => status.pids,
        None => api.provider().pid().into_iter().collect(),
    };
    match (wanted, &pids[..]) {
        (_, []) if api.provider().pid().is_none() => Err(api.no_target()),
        (_, []) => Err(ApiError::Failed(
            "a heap snapshot needs a running process, and the target has ended".to_owned(),
        )),
        (Some(pid), pids) if !pids.contains(&pid) => Err(ApiError::NotFound(Some(format!(
            "memprof does not follow a process {pid}: /v2/processes lists the processes"
        )))),
        (Some(pid), _) => Ok(pid),
        (None, [pid]) => Ok(*pid),
        (None, several) => {
            let named: Vec<String> = several.iter().take(NAMED).map(Pid::to_string).collect();
            let more = if several.len() > NAMED { ", …" } else { "" };
            Err(bad(format!(
                "memprof follows {} processes: choose one with {{\"pid\": PID}} ({}{more})",
                several.len(),
                named.join(", ")
            )))
        }
    }
}

impl Endpoint for Show {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let kept = api.heaps.get(&self.0)?;
            let info = serde_json::to_vec(&kept.info).map_err(internal)?;
            let mut whole = b"{\"snapshot\":".to_vec();
            whole.extend_from_slice(&info);
            let parts = std::iter::once(("heap", &kept.json));
            for (name, json) in parts.chain(kept.by_stack.iter().map(|(name, json)| (*name, json)))
            {
                whole.extend_from_slice(format!(",\"{name}\":").as_bytes());
                whole.extend_from_slice(json);
            }
            whole.push(b'}');
            Ok(Reply::new(JSON, whole))
        })
    }
}

impl Endpoint for Forget {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            api.heaps.lock().remove(&self.0)?;
            Ok(reply::deleted())
        })
    }
}
