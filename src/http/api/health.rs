//! `/v2/health`: state and cost of memprof itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::common::{Loss, OutcomeRow, losses, millis, outcomes};
use super::events::CLIENTS;
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Provider, Reply, Request, own};
use crate::collect::LastScan;
use crate::export::push;
use crate::http::series::Series;
use crate::probe::{FaultsSeen, SyscallHooks};
use memprof_code::debuginfod;
use memprof_profile::MapUsage;
use memprof_sys::freeze::now_ns;

/// `/v2/health`.
pub(super) fn read(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(Health))
}

#[derive(Debug)]
struct Health;

#[derive(Serialize)]
struct HealthReply {
    version: &'static str,
    now: u64,
    /// The file name, for a saved profile.
    opened: Option<String>,
    target: Option<u32>,
    report: Option<u64>,
    scan: Option<Scan>,
    losses: Vec<Loss>,
    not_counted: Vec<Loss>,
    outcomes: Vec<OutcomeRow>,
    maps: Vec<Fill>,
    /// `null` without a probe.
    syscall_hooks: Option<Hooks>,
    /// `null` without page-fault hooks.
    fault_hooks: Option<Hooks>,
    /// Optional programs of the probe that could not be attached on this kernel.
    missing_programs: Vec<Absent>,
    own: Own,
    series: Samples,
    marks: usize,
    event_clients: Clients,
    /// `null` if debuginfod is disabled.
    debuginfod: Option<debuginfod::Status>,
    /// `null` if profiles are not pushed to a store.
    push: Option<push::Status>,
}

#[derive(Serialize)]
struct Scan {
    taken: u64,
    age_ms: u64,
    duration_ms: u64,
}

#[derive(Serialize)]
struct Fill {
    name: &'static str,
    entries: u64,
    capacity: u64,
}

#[derive(Serialize)]
struct Hooks {
    at: &'static str,
    /// The reason why the hooks slow down every process.
    why: Option<String>,
}

#[derive(Serialize)]
struct Absent {
    name: &'static str,
    why: String,
}

#[derive(Serialize)]
struct Own {
    rss: u64,
    cpu_ms: u64,
    uptime_ms: u64,
}

#[derive(Serialize)]
struct Samples {
    samples: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Clients {
    now: usize,
    limit: usize,
}

fn scan(last: &LastScan) -> Scan {
    let taken = last.profile.taken;
    let age = Duration::from_nanos(now_ns().saturating_sub(last.profile.taken_ns));
    Scan {
        taken: millis(taken),
        age_ms: age.as_millis() as u64,
        duration_ms: last.took.as_millis() as u64,
    }
}

fn hooks(hooks: SyscallHooks) -> Hooks {
    match hooks {
        SyscallHooks::Functions => Hooks {
            at: "functions",
            why: None,
        },
        SyscallHooks::Tracepoints(why) => Hooks {
            at: "tracepoints",
            why: Some(why),
        },
    }
}

fn fault_hooks(seen: FaultsSeen) -> Option<Hooks> {
    let (at, why) = match seen {
        FaultsSeen::Nowhere => return None,
        FaultsSeen::Tracepoints => ("tracepoints", None),
        FaultsSeen::Threads => ("thread_events", None),
        FaultsSeen::Processors(why) => ("processor_events", Some(why)),
    };
    Some(Hooks { at, why })
}

fn missing(provider: &dyn Provider) -> Vec<Absent> {
    let missing = provider.missing_programs().into_iter();
    missing.map(|(name, why)| Absent { name, why }).collect()
}

impl Endpoint for Health {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let status = api.provider().status().await;
            let last = status.and_then(|status| status.last);
            let tables = api.provider().tables().await;
            let profile = last.as_ref().map(|last| &last.profile);
            let fill = |table: MapUsage| Fill {
                name: table.name,
                entries: table.entries,
                capacity: table.capacity,
            };
            Reply::json(&HealthReply {
                version: env!("CARGO_PKG_VERSION"),
                now: millis(SystemTime::now()),
                opened: api.provider().opened().map(str::to_owned),
                target: api.provider().pid().map(|pid| pid.0),
                report: last.as_ref().map(|last| last.sequence),
                scan: last
                    .as_ref()
                    .filter(|_| api.provider().opened().is_none())
                    .map(scan),
                losses: profile.map(|p| losses(p.losses.lost())).unwrap_or_default(),
                not_counted: profile
                    .map(|p| losses(p.losses.not_counted()))
                    .unwrap_or_default(),
                outcomes: profile.map(|p| outcomes(p)).unwrap_or_default(),
                maps: tables.into_iter().map(fill).collect(),
                syscall_hooks: api.provider().syscall_hooks().map(hooks),
                fault_hooks: fault_hooks(api.provider().faults_seen()),
                missing_programs: missing(api.provider()),
                own: Own {
                    rss: own::rss(),
                    cpu_ms: own::cpu().as_millis() as u64,
                    uptime_ms: api.started.elapsed().as_millis() as u64,
                },
                series: Samples {
                    samples: api.series().len(),
                    bytes: Series::BYTES,
                },
                marks: api.marks.count(),
                event_clients: Clients {
                    now: api.events.clients(),
                    limit: CLIENTS,
                },
                debuginfod: api.provider().debuginfod(),
                push: api.provider().pushed(),
            })
        })
    }
}
