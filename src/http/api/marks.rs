//! `/v2/marks`: states stored for differences.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use rustc_hash::FxHashSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Kinds, millis, stopped_us};
use super::oom_kills::OomKillRow;
use super::recorded::moment;
use super::request::RequestContext;
use super::store::{self, Keepable, KeptList, MAX_ENTRIES, checked_name};
use super::{Api, ApiError, BoxFuture, Endpoint, Provider, Reply, Request, reply};
use crate::collect::ProviderError;
use memprof_profile::allocations::MarkTime;
use memprof_profile::{FreezeOutcome, OomKill, Profile, Report, Sample, Stack};
use memprof_recording::At;
use memprof_sys::freeze::Freeze;
use memprof_sys::ids::Pid;

/// Maximum bytes of all marks together. A stack that occurs in several marks counts once.
const MAX_BYTES: usize = 48 << 20;

/// Approximate bytes of a frame's name in a report, of a mapping or other row, and of the headers of a stack's two
/// memory blocks.
const NAME: usize = 48;
const ROW: usize = 128;
const HEADS: usize = 32;

/// Maximum number of marks of killed processes, so that a service that is killed and restarted repeatedly leaves space for
/// the user's marks.
const MAX_KILL_MARKS: usize = 4;

/// The id of the mark that always exists once there is a report: the moment with the most resident memory so far.
pub(super) const PEAK: &str = "peak";

/// Set in the number of the peak's mark; the other bits are the number of its report, because the peak changes.
const PEAK_BIT: u64 = 1 << 63;

/// Set in the numbers of marks of recorded moments; the other bits are the number of its report.
const MOMENT_BIT: u64 = 1 << 62;

/// What the id of a mark that is a recorded moment begins with.
const MOMENT: char = '@';

/// Denotes the newest report where a mark id is expected.
pub(super) const NOW: &str = "now";

/// A stored state.
#[derive(Clone)]
pub(super) struct Mark {
    pub(super) id: u64,
    pub(super) name: Option<String>,
    pub(super) report: Arc<Report>,
    created: SystemTime,
    /// See [`MarkTime`].
    at_ns: Option<u64>,
    /// The process killed by the OOM killer, if the mark was made for a kill.
    oom_kill: Option<OomKill>,
}

impl Mark {
    /// The mark of the peak, with its report.
    fn of_peak(report: Arc<Report>) -> Mark {
        Mark {
            id: PEAK_BIT | report.sequence,
            name: Some(PEAK.to_owned()),
            created: report.profile.taken,
            at_ns: Some(report.profile.taken_ns),
            oom_kill: None,
            report,
        }
    }

    /// The mark of a recorded moment.
    fn of_moment(report: Arc<Report>) -> Mark {
        Mark {
            id: MOMENT_BIT | report.sequence,
            name: None,
            created: report.profile.taken,
            at_ns: None,
            oom_kill: None,
            report,
        }
    }

    /// The id in requests and replies.
    pub(super) fn shown_id(&self) -> String {
        match self.id {
            id if id & PEAK_BIT != 0 => PEAK.to_owned(),
            id if id & MOMENT_BIT != 0 => format!("{MOMENT}{}", millis(self.created)),
            id => id.to_string(),
        }
    }
}

impl Keepable for Mark {
    const NAME: &'static str = "mark";
    const PATH: &'static str = "/v2/marks";
    const MAX_BYTES: usize = MAX_BYTES;
}

/// The stored marks.
#[derive(Default)]
pub(super) struct Marks(Mutex<StoredMarks>);

#[derive(Default)]
struct StoredMarks {
    marks: KeptList<Mark>,
    /// Reports of deleted marks that requests still use, and their sizes in bytes.
    deleted: Vec<(Weak<Profile>, usize)>,
}

impl Marks {
    fn lock(&self) -> MutexGuard<'_, StoredMarks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().marks.len()
    }

    /// The stored mark with this id.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    fn get(&self, id: &str) -> Result<Mark, ApiError> {
        self.lock().marks.get(id).cloned()
    }

    /// Stores a report; `at_ns` is the moment that the mark stands for, as in [`MarkTime`].
    ///
    /// # Errors
    /// [`ApiError::Full`] if it does not fit.
    pub(super) fn add(
        &self,
        name: Option<String>,
        report: Arc<Report>,
        at_ns: Option<u64>,
    ) -> Result<Mark, ApiError> {
        self.add_of(name, report, at_ns, None)
    }

    fn add_of(
        &self,
        name: Option<String>,
        report: Arc<Report>,
        at_ns: Option<u64>,
        oom_kill: Option<OomKill>,
    ) -> Result<Mark, ApiError> {
        let mut kept = self.lock();
        let of_kill = |mark: &&Mark| mark.oom_kill.is_some();
        if oom_kill.is_some() && kept.marks.iter().filter(of_kill).count() >= MAX_KILL_MARKS {
            return Err(ApiError::Full(format!(
                "memprof makes at most {MAX_KILL_MARKS} marks by itself, of processes that were killed: delete one with \
                 DELETE /v2/marks/ID"
            )));
        }
        kept.check_room(Some(&report))?;
        let mut mark = Mark {
            id: 0,
            name,
            report,
            created: SystemTime::now(),
            at_ns,
            oom_kill,
        };
        kept.marks.add(|id| {
            mark.id = id;
            mark.clone()
        });
        Ok(mark)
    }

    /// Checks that one more mark fits, whatever its report.
    ///
    /// # Errors
    /// [`ApiError::Full`] if it does not fit.
    pub(super) fn check_room(&self) -> Result<(), ApiError> {
        self.lock().check_room(None)
    }

    fn remove(&self, id: &str) -> Result<(), ApiError> {
        let mut kept = self.lock();
        if let Some(mark) = kept.marks.remove(id)? {
            let bytes = weight(&mark.report, &mut HashSet::default());
            let report = Arc::downgrade(&mark.report.profile);
            kept.deleted.push((report, bytes));
        }
        Ok(())
    }
}

impl Api {
    /// The mark with this id, which may be [`PEAK`], or `@` and the name of a recorded moment. A process that is selected, `of`, has
    /// its own peak.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist; [`ApiError::Unavailable`] if there is no report;
    /// [`ApiError::Failed`] if nothing is recorded.
    pub(super) async fn mark(&self, id: &str, of: Option<Pid>) -> Result<Mark, ApiError> {
        if let Some(name) = id.strip_prefix(MOMENT) {
            let at = moment("mark", name)?;
            let report = self.recorded()?.report(at).await?;
            return Ok(Mark::of_moment(report));
        }
        if id != PEAK {
            return self.marks.get(id);
        }
        match (peak(self.provider(), of).await?, of) {
            (Some(report), _) => Ok(Mark::of_peak(report)),
            (None, Some(pid)) => Err(no_peak(pid)),
            (None, None) => Err(ProviderError::NoTarget.into()),
        }
    }

    /// The mark with this id; `None` for [`NOW`].
    ///
    /// # Errors
    /// As for [`Api::mark`].
    pub(super) async fn mark_or_now(
        &self,
        id: &str,
        of: Option<Pid>,
    ) -> Result<Option<Mark>, ApiError> {
        match id {
            NOW => Ok(None),
            id => self.mark(id, of).await.map(Some),
        }
    }

    /// The times of the marks, for filters; oldest first.
    pub fn mark_times(&self) -> Vec<MarkTime> {
        let kept = self.marks.lock();
        let times = kept.marks.iter().map(|mark| MarkTime {
            id: mark.id,
            name: mark.name.clone(),
            at_ns: mark.at_ns,
        });
        times.collect()
    }
}

/// The report of the moment with the most resident memory, of a process or of all together; `None` if there is none. Of a recording,
/// it is the moment of all together.
///
/// # Errors
/// A saved profile has only its own moment.
pub async fn peak(
    provider: &dyn Provider,
    of: Option<Pid>,
) -> Result<Option<Arc<Report>>, ApiError> {
    match provider.recorded().filter(|_| provider.opened().is_some()) {
        Some(recorded) => recorded.report(At::Peak).await.map(Some),
        None => Ok(provider.peak(of).await?),
    }
}

fn no_peak(pid: Pid) -> ApiError {
    ApiError::NotFound(Some(format!(
        "no peak of process {pid} is kept: memprof keeps the peaks of the processes that had the most memory, see /v2/processes"
    )))
}

/// Approximate size of a report in bytes; counts only stacks that are not in `counted`.
fn weight(report: &Report, counted: &mut FxHashSet<*const Stack>) -> usize {
    let profile = &report.profile;
    let each = profile.processes.iter().map(|share| &share.samples);
    let files = profile.places.files.iter().map(|file| &file.samples);
    let mut bytes = report.symbols.len() * NAME
        + profile.not_observed.len() * ROW
        + profile.places.mappings.len() * ROW;
    for sample in [&profile.samples]
        .into_iter()
        .chain(each)
        .chain(files)
        .flatten()
    {
        bytes += size_of::<Sample>();
        if counted.insert(Arc::as_ptr(&sample.stack)) {
            bytes += size_of::<Stack>() + size_of_val(&*sample.stack.frames) + HEADS;
        }
    }
    bytes
}

impl StoredMarks {
    /// Checks that one more mark fits, including `report` if given. The first mark always fits.
    fn check_room(&mut self, report: Option<&Report>) -> Result<(), ApiError> {
        self.deleted.retain(|(report, _)| report.strong_count() > 0);
        if self.marks.len() == 0 && self.deleted.is_empty() {
            return Ok(());
        }
        let mut counted = HashSet::default();
        let marks = self.marks.iter().map(|mark| &*mark.report);
        let held: usize = marks.chain(report).map(|r| weight(r, &mut counted)).sum();
        let deleted: usize = self.deleted.iter().map(|(_, bytes)| bytes).sum();
        self.marks.check_room(held + deleted)
    }
}

/// A mark as `/v2/marks` shows it.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Mark")]
pub(super) struct MarkReply<'a> {
    /// Id of the mark: a number, `peak`, or `@` and the time of a recorded moment in ms since 1970.
    id: String,
    /// Name given by the client, or by memprof.
    name: Option<String>,
    /// Milliseconds since 1970-01-01 UTC.
    created: u64,
    /// Number of the report that the mark keeps.
    report: u64,
    /// End of the report's page scan, in milliseconds since 1970-01-01 UTC.
    taken: u64,
    /// How long the target was frozen for this report, in microseconds; null if it was running. If processes were
    /// frozen one after the other, the longest time. Never longer than --max-freeze.
    stopped_us: Option<u64>,
    /// Whether the processes were frozen one after the other, each for its own scan. With pid=PID each process is
    /// exact, but the sums do not show a single moment.
    stopped_in_turn: bool,
    /// The same as `exact` in Report.
    exact: bool,
    total: Kinds,
    /// The killed process, if the mark was made for a kill.
    oom_kill: Option<OomKillRow<'a>>,
}

impl<'a> From<&'a Mark> for MarkReply<'a> {
    fn from(mark: &'a Mark) -> MarkReply<'a> {
        let profile = &mark.report.profile;
        MarkReply {
            id: mark.shown_id(),
            name: mark.name.clone(),
            created: millis(mark.created),
            report: mark.report.sequence,
            taken: millis(profile.taken),
            stopped_us: stopped_us(&profile.freeze),
            stopped_in_turn: profile.freeze.in_turn(),
            exact: profile.is_exact(),
            total: Kinds(profile.total),
            oom_kill: mark.oom_kill.as_ref().map(OomKillRow::from),
        }
    }
}

#[derive(Debug)]
struct List;

#[derive(Debug)]
struct Keep(MarkParams);

#[derive(Debug)]
struct Forget(String);

/// JSON body of a request to make a mark.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MarkParams {
    name: Option<String>,
    /// Freeze the target for the mark's report.
    freeze: bool,
    /// Freeze all processes together for the mark's report.
    freeze_group: bool,
}

/// `GET /v2/marks`.
pub(super) fn list(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(List))
}

/// `POST /v2/marks`.
pub(super) fn keep(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let example = r#"{"name": "start", "freeze": true}"#;
    let mut wanted: MarkParams = store::parameters(&asked.body, example)?;
    wanted.name = checked_name(wanted.name)?;
    Ok(Arc::new(Keep(wanted)))
}

/// `DELETE /v2/marks/{id}`.
pub(super) fn forget(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(Forget(asked.name.to_owned())))
}

/// The marks.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Marks")]
pub(super) struct ListReply<'a> {
    /// All marks, oldest first.
    marks: Vec<MarkReply<'a>>,
    /// The mark that always exists, with the id `peak`: the moment with the most resident memory so far. Null before the
    /// first report, and if a saved profile is shown.
    peak: Option<MarkReply<'a>>,
    /// Maximum number of marks.
    limit: usize,
}

impl Endpoint for List {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let peak = api.mark(PEAK, None).await.ok();
            let kept = api.marks.lock();
            let marks = kept.marks.iter().map(MarkReply::from).collect();
            reply::json(&ListReply {
                marks,
                peak: peak.as_ref().map(MarkReply::from),
                limit: MAX_ENTRIES,
            })
        })
    }
}

impl Endpoint for Keep {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let report = match (self.0.freeze_group, self.0.freeze) {
                (true, _) => still(api, Freeze::Group).await?,
                (_, true) => still(api, Freeze::Each).await?,
                _ => api.provider().profile().await?,
            };
            let at_ns = report.profile.taken_ns;
            let mark = api.marks.add(self.0.name.clone(), report, Some(at_ns))?;
            reply::created(&MarkReply::from(&mark))
        })
    }
}

impl Api {
    /// Makes a mark of the newest state and returns its number. `at_ns` is the moment that the mark stands for in
    /// filters, in ns of `CLOCK_MONOTONIC`, if it differs from the time of the report.
    ///
    /// # Errors
    /// The mark does not fit, or there is no report.
    pub async fn make_mark(
        &self,
        name: Option<String>,
        at_ns: Option<u64>,
    ) -> Result<u64, ApiError> {
        let name = checked_name(name)?;
        self.marks.check_room()?;
        let report = self.provider().profile().await?;
        let at_ns = at_ns.unwrap_or_else(|| report.profile.taken_ns);
        self.marks
            .add(name, report, Some(at_ns))
            .map(|mark| mark.id)
    }
}

impl Api {
    /// Makes a mark of the last profile of a process that the OOM killer has killed, and returns its number. `at_ns` is
    /// the time of the kill, in ns of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// The mark does not fit, or there are already as many marks of kills as memprof allows.
    pub fn make_mark_of_kill(
        &self,
        kill: &OomKill,
        report: Arc<Report>,
        at_ns: u64,
    ) -> Result<u64, ApiError> {
        let name = checked_name(Some(format!("OOM: {} ({})", kill.comm, kill.pid)))?;
        let mark = self
            .marks
            .add_of(name, report, Some(at_ns), Some(kill.clone()))?;
        Ok(mark.id)
    }
}

/// Makes a report with the target frozen; an error if it cannot be frozen.
async fn still(api: &Api, how: Freeze) -> Result<Arc<Report>, ApiError> {
    // Do not freeze the target if the mark does not fit.
    api.marks.check_room()?;
    let report = api.provider().frozen(how).await?;
    let profile = &report.profile;
    let why = match &profile.freeze {
        _ if !profile.target.alive => "it has ended",
        FreezeOutcome::Still { .. } | FreezeOutcome::InTurn { .. } => return Ok(report),
        FreezeOutcome::Failed { why, .. } => why,
        FreezeOutcome::Ran => "no attempt was made",
    };
    Err(ApiError::Unavailable(format!(
        "the target could not be frozen: {why}"
    )))
}

impl Endpoint for Forget {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            api.marks.remove(&self.0)?;
            Ok(reply::deleted())
        })
    }
}
