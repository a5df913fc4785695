//! `/debug/memory`: the composition of the target's memory as text. Only local clients get a reply, because addresses
//! tell an attacker where code is mapped.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::memory_budget::Roomed;
use super::query::bad;
use super::reply::internal;
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use crate::collect::ProviderError;
use memprof_sys::breakdown::{Breakdown, Show, measure};
use memprof_sys::ids::Pid;

pub(super) const PARAMETERS: &[&str] = &["top", "pid"];

/// Default and maximum number of listed names and mappings.
const DEFAULT_TOP: u64 = 20;
const MAX_TOP: u64 = 10_000;

const TEXT: &str = "text/plain; charset=utf-8";

/// Admits one request at a time, because reading makes the kernel lock the target's address space.
static TURN: Semaphore = Semaphore::const_new(1);

#[derive(Clone, Copy, Debug)]
struct Memory {
    /// A followed process; `None` for the first one.
    pid: Option<Pid>,
    top: usize,
}

/// `/debug/memory`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    if !asked.local {
        let message = "this reply contains addresses, so only programs on this machine may request it: use a \
                       loopback address, without a proxy, or run `memprof maps`";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    let top = asked.query.number("top", "", MAX_TOP)?;
    let pid = asked.query.number("pid", "", i32::MAX as u64)?;
    Ok(Arc::new(Memory {
        pid: pid.map(|pid| Pid(pid as u32)),
        top: top.unwrap_or(DEFAULT_TOP) as usize,
    }))
}

impl Endpoint for Memory {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let pid = self.process(api).await?;
            let turn = TURN.acquire().await.map_err(internal)?;
            let show = Show::Top(self.top);
            // The thread holds the permit: it continues even if the client has disconnected.
            let made = tokio::task::spawn_blocking(move || (text(pid, show), turn));
            let (text, _turn) = made.await.map_err(internal)?;
            // The process may have ended and its id may have been reused. If the process lives now, the text is its
            // own.
            let text = text?;
            must_live(api, pid).await?;
            let held = api.reply_builder.room(text.len())?;
            Ok(Reply::new(TEXT, Roomed::bytes(text, held)))
        })
    }
}

impl Memory {
    /// The requested process; it must be followed.
    async fn process(&self, api: &Api) -> Result<Pid, ApiError> {
        if let Some(file) = api.provider().opened() {
            return Err(bad(format!(
                "this is the saved profile {file}, not a process: /v2/maps has the mappings that were saved"
            )));
        }
        let no_target = || ApiError::Unavailable(ProviderError::NoTarget.to_string());
        let first = api.provider().pid().ok_or_else(no_target)?;
        let Some(pid) = self.pid.filter(|pid| *pid != first) else {
            return Ok(first);
        };
        let report = api.provider().profile().await;
        let report = report.map_err(|e| ApiError::Unavailable(e.to_string()))?;
        match report.profile.target.pids.contains(&pid) {
            true => Ok(pid),
            false => Err(bad(format!(
                "parameter pid must be the id of a followed process, got {pid}: /v2/processes lists them"
            ))),
        }
    }
}

/// Checks that a followed process has not ended.
pub(super) async fn must_live(api: &Api, pid: Pid) -> Result<(), ApiError> {
    let report = api.provider().profile().await;
    let report = report.map_err(|e| ApiError::Unavailable(e.to_string()))?;
    let target = &report.profile.target;
    match target.alive && target.pids.contains(&pid) {
        true => Ok(()),
        false => Err(ApiError::Unavailable(format!("process {pid} has ended"))),
    }
}

fn text(pid: Pid, show: Show) -> Result<Vec<u8>, ApiError> {
    let breakdown: Breakdown =
        measure(pid, show).map_err(|e| ApiError::Unavailable(e.to_string()))?;
    let mut out = Vec::new();
    breakdown.write_text(&mut out).map_err(internal)?;
    Ok(out)
}
