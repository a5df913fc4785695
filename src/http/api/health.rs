//! `/v2/health`: state and cost of memprof itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{Loss, OutcomeRow, losses, millis, outcomes};
use super::events::CLIENTS;
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Provider, Reply, Request, own, reply};
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

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Health")]
pub(super) struct HealthReply {
    /// Version of memprof.
    version: &'static str,
    /// Milliseconds since 1970-01-01 UTC.
    now: u64,
    /// The file, if this is a saved profile (`memprof open`).
    opened: Option<String>,
    /// Process id.
    target: Option<u32>,
    /// Number of the newest report.
    report: Option<u64>,
    /// The newest page scan.
    scan: Option<Scan>,
    losses: Vec<Loss>,
    not_counted: Vec<Loss>,
    outcomes: Vec<OutcomeRow>,
    /// Fill levels of the probe's tables; updated at most once a second, and less often if counting takes long.
    maps: Vec<Fill>,
    /// Where the probe sees system calls; `null` for a saved profile.
    syscall_hooks: Option<Hooks>,
    /// Where the probe sees page faults; `null` if nowhere: for a saved profile, with `--stacks off`, or before the
    /// command starts.
    fault_hooks: Option<Hooks>,
    /// Optional programs of the probe that this kernel did not attach.
    missing_programs: Vec<Absent>,
    /// Resource usage of memprof.
    own: Own,
    series: Samples,
    /// Number of marks.
    marks: usize,
    event_clients: Clients,
    /// Requests to debuginfod servers; `null` if debuginfod is disabled.
    debuginfod: Option<debuginfod::Status>,
    /// Outcome of the profiles that are pushed to a store; `null` without `--push`.
    push: Option<push::Status>,
}

/// The newest page scan.
#[derive(JsonSchema, Serialize)]
struct Scan {
    /// Milliseconds since 1970-01-01 UTC.
    taken: u64,
    /// Time since the scan, in milliseconds.
    age_ms: u64,
    /// Duration of the scan, in milliseconds.
    duration_ms: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "TableFill")]
struct Fill {
    /// Name of the BPF map.
    name: &'static str,
    /// Number of entries in use.
    entries: u64,
    /// Maximum number of entries.
    capacity: u64,
}

/// Where the probe sees system calls or page faults.
#[derive(JsonSchema, Serialize)]
struct Hooks {
    /// System calls: `functions`, at the functions of those that change memory (`kprobe.multi`), `trampolines`, at the
    /// same functions (fentry and fexit), or `tracepoints`, at all system calls, which costs every process on the machine.
    /// Page faults: `tracepoints`, at the kernel's; where it has none (64-bit ARM), `thread_events`, at the software event
    /// of the threads of the process, or `processor_events`, at the one of all processors, which costs every process on the
    /// machine.
    #[schemars(extend("enum" = ["functions", "trampolines", "tracepoints", "thread_events", "processor_events"]))]
    at: &'static str,
    /// Why the hooks slow down every process; `null` if they do not.
    why: Option<String>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "MissingProgram")]
struct Absent {
    /// `oom_kill`: kills because memory had run out are not seen.
    name: &'static str,
    why: String,
}

/// Resource usage of memprof.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "OwnUsage")]
struct Own {
    /// Resident memory of memprof, in bytes.
    rss: u64,
    /// User and system CPU time since start, in milliseconds.
    cpu_ms: u64,
    /// Time since start, in milliseconds.
    uptime_ms: u64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "SeriesUsage")]
struct Samples {
    /// Number of samples.
    samples: usize,
    /// Maximum memory of the samples, in bytes.
    bytes: usize,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "EventClients")]
struct Clients {
    /// Number of clients now.
    now: usize,
    /// Maximum number of clients.
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
        SyscallHooks::Trampolines => Hooks {
            at: "trampolines",
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
            reply::json(&HealthReply {
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
