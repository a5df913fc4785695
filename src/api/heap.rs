//! `/v2/heap`: heap snapshots of the followed processes, which are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::common::millis;
use super::marks::checked_name;
use super::query::{bad, quoted};
use super::reply::{JSON, internal};
use super::request::RequestContext;
use super::{Api, ApiError, Ask, Body, BoxFuture, HeapOptions, HeapSnapshot, Reply, Request};
use crate::event::Pid;
use crate::heap::Figures;

/// Maximum number of snapshots.
const MOST: usize = 16;
/// Limit for the bytes of all of them together, as JSON.
const MOST_BYTES: usize = 8 << 20;

/// Number of chunks and other single things that are listed by default, and at most.
const TOP: usize = 100;
const MOST_TOP: usize = 1000;
/// The longest stop that a request may allow, in milliseconds.
const LONGEST_STOP: u64 = 10_000;

/// Maximum number of process ids in a message.
const NAMED: usize = 8;

/// A kept snapshot.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) info: Info,
    /// The snapshot as JSON.
    pub(super) json: Bytes,
}

/// What the list of snapshots says of one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Info {
    id: String,
    name: Option<String>,
    taken: u64,
    pid: u32,
    comm: String,
    stopped_us: u64,
    copied: u64,
    allocator: &'static str,
    refused: Option<String>,
    #[serde(flatten)]
    figures: Figures,
}

/// The snapshots, oldest first.
#[derive(Default)]
pub(super) struct Heaps(Mutex<State>);

#[derive(Default)]
struct State {
    kept: VecDeque<Kept>,
    last: u64,
}

impl Heaps {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The snapshot with that id.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is none.
    pub(super) fn get(&self, id: &str) -> Result<Kept, ApiError> {
        let state = self.lock();
        let found = state.kept.iter().find(|kept| kept.info.id == id);
        found.cloned().ok_or_else(|| no_snapshot(id))
    }

    /// Keeps a snapshot, if there is room.
    fn add(&self, name: Option<String>, taken: &HeapSnapshot) -> Result<Info, ApiError> {
        let heap = &taken.heap;
        let json = serde_json::to_vec(heap).map_err(internal)?;
        let mut state = self.lock();
        state.check_room(json.len())?;
        state.last += 1;
        let info = Info {
            id: state.last.to_string(),
            name,
            taken: millis(taken.taken),
            pid: heap.pid,
            comm: heap.comm.clone(),
            stopped_us: (heap.taken.stop_ms * 1e3) as u64,
            copied: heap.copied,
            allocator: heap.allocator_name(),
            refused: heap.refused().map(str::to_owned),
            figures: heap.into(),
        };
        state.kept.push_back(Kept {
            info: info.clone(),
            json: json.into(),
        });
        Ok(info)
    }

    fn remove(&self, id: &str) -> Result<(), ApiError> {
        let mut state = self.lock();
        let at = state.kept.iter().position(|kept| kept.info.id == id);
        state.kept.remove(at.ok_or_else(|| no_snapshot(id))?);
        Ok(())
    }
}

impl State {
    /// Checks that there is room for one more snapshot of so many bytes.
    fn check_room(&self, bytes: usize) -> Result<(), ApiError> {
        let held: usize = self.kept.iter().map(|kept| kept.json.len()).sum();
        if self.kept.len() < MOST && held + bytes <= MOST_BYTES {
            return Ok(());
        }
        Err(ApiError::Full(format!(
            "memprof keeps at most {MOST} heap snapshots and {} MiB of them: delete one with DELETE /v2/heap/ID",
            MOST_BYTES >> 20
        )))
    }
}

fn no_snapshot(id: &str) -> ApiError {
    ApiError::NotFound(Some(format!(
        "there is no heap snapshot {}: /v2/heap lists them",
        quoted(id)
    )))
}

/// JSON body of a request to take a snapshot.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Params {
    name: Option<String>,
    /// Which process, where several are followed.
    pid: Option<u32>,
    /// Maximum time of the stop, in milliseconds; by default that of `--max-freeze`.
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
    let wanted: Params = match &*asked.body {
        [] => Params::default(),
        body => serde_json::from_slice(body).map_err(|e| {
            bad(format!(
                "the body must be JSON like {{\"name\": \"start\", \"max_stop\": 200}}: {e}"
            ))
        })?,
    };
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
    between("top", top as u64, MOST_TOP as u64)?;
    Ok(Arc::new(Take {
        name: checked_name(wanted.name)?,
        pid: wanted.pid.map(Pid),
        options: HeapOptions {
            max_stop: wanted.max_stop.map(Duration::from_millis),
            top,
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

/// `DELETE /v2/heap/{id}`.
pub(super) fn forget(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(Forget(asked.name.to_owned())))
}

impl Ask for List {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        #[derive(Serialize)]
        struct ListReply {
            snapshots: Vec<Info>,
            limit: usize,
        }
        Box::pin(async {
            let state = api.heaps.lock();
            let snapshots = state.kept.iter().map(|kept| kept.info.clone()).collect();
            Reply::json(&ListReply {
                snapshots,
                limit: MOST,
            })
        })
    }
}

impl Ask for Take {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            // Do not stop the target if there is no room for the snapshot.
            api.heaps.lock().check_room(0)?;
            let pid = followed(api, self.pid).await?;
            let taken = api.provider().heap(pid, self.options).await?;
            let info = api.heaps.add(self.name.clone(), &taken)?;
            Ok(Reply {
                status: 201,
                ..Reply::json(&info)?
            })
        })
    }
}

/// The followed process that is meant.
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

impl Ask for Show {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let kept = api.heaps.get(&self.0)?;
            let info = serde_json::to_vec(&kept.info).map_err(internal)?;
            let parts: [&[u8]; 5] = [b"{\"snapshot\":", &info, b",\"heap\":", &kept.json, b"}"];
            Ok(Reply::new(JSON, parts.concat()))
        })
    }
}

impl Ask for Forget {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            api.heaps.remove(&self.0)?;
            Ok(Reply {
                status: 204,
                content_type: "",
                file_name: None,
                body: Body::Whole(Bytes::new()),
            })
        })
    }
}
