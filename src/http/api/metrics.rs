//! `/metrics`: metrics in the OpenMetrics and Prometheus formats.

mod format;

use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use self::format::Format;
use super::common::millis;
use super::memory_budget::Out;
use super::reply::internal;
use super::request::RequestContext;
use super::view::View;
use super::{Api, ApiError, Body, BoxFuture, Endpoint, Reply, Request, own};
use crate::collect::ProviderError;
use crate::export::growth::{GrowthRow, GrowthTable};
use crate::export::push;
use memprof_profile::measure::Unit;
use memprof_profile::tree::{NO_SYMBOL, Table};
use memprof_profile::{Amounts, FrameFilter, Kind, Profile, Report};
use memprof_sys::text::printable;

/// Kinds that are resident in the target's address space.
const RESIDENT: [Kind; 4] = [Kind::Anon, Kind::Shmem, Kind::File, Kind::Hugetlb];

type Labels = Vec<(&'static str, String)>;

/// `/metrics`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let format = match asked.plain_text {
        true => Format::Plain,
        false => Format::OpenMetrics,
    };
    Ok(Arc::new(Metrics { format }))
}

#[derive(Debug)]
struct Metrics {
    format: Format,
}

impl Endpoint for Metrics {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let (functions, format) = (api.options.metrics_functions, self.format);
            let mut reply = match api.provider().profile().await {
                Ok(report) => {
                    let view = Arc::new(OfReport { functions, format });
                    api.show(report, &api.state_again(None), view).await?
                }
                // memprof's own metrics are available without a target.
                Err(ProviderError::NoTarget) => Reply::new(format.content_type(), ""),
                Err(e) => return Err(e.into()),
            };
            let mut own = own_figures(api.provider().pushed());
            if let Some(recorded) = api.provider().recorded() {
                growth_figures(&mut own, &*recorded.growth_lately().await?, functions);
            }
            let own = format.write(&own)? + format.end();
            reply.body = match reply.body {
                Body::Whole(shared) => Body::Two(shared, own.into()),
                other => other,
            };
            Ok(reply)
        })
    }
}

/// The metrics of a report.
#[derive(Debug)]
struct OfReport {
    functions: usize,
    format: Format,
}

impl View for OfReport {
    fn content_type(&self) -> &'static str {
        self.format.content_type()
    }

    fn write(&self, report: &Report, out: &mut Out) -> Result<(), ApiError> {
        let report = &*report.showing(FrameFilter::All);
        let mut figures = GaugeRegistry::default();
        figures.target(&report.profile);
        figures.memory(&report.profile);
        figures.peak(&report.profile);
        figures.kernel(&report.profile);
        figures.cgroup(&report.profile);
        figures.stacks(&report.profile);
        figures.functions(report, self.functions);
        out.write_all(self.format.write(&figures.0)?.as_bytes())
            .map_err(internal)
    }

    /// Monitoring must not wait for slow tree views.
    fn is_light(&self) -> bool {
        true
    }
}

/// memprof's own metrics, under the names that all exporters use.
fn own_figures(pushed: Option<push::Status>) -> Registry {
    let mut registry = Registry::default();
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(own::cpu().as_secs_f64());
    let help = "CPU time of memprof itself, user and system";
    registry.register("process_cpu_seconds", help, cpu);
    let rss: Gauge = Gauge::default();
    rss.set(signed(own::rss()));
    let help = "Resident memory of memprof itself";
    registry.register("process_resident_memory_bytes", help, rss);
    let version = Family::<Labels, Gauge>::default();
    let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    version.get_or_create(&labels).set(1);
    registry.register("memprof_build_info", "Always 1", version);
    if let Some(status) = pushed {
        push_figures(&mut registry, &status);
    }
    registry
}

/// What grew steadily in the last hour, and is certain.
fn growth_figures(registry: &mut Registry, table: &GrowthTable, functions: usize) {
    let rate = |row: &GrowthRow| row.steady_rate().map(|per_hour| per_hour / 3600.0);
    let Some(all) = &table.total else {
        return;
    };
    let total = Gauge::<f64, AtomicU64>::default();
    total.set(rate(all).unwrap_or(0.0));
    let help = "Steady growth of anon, shmem and cache in the last hour, without two standard errors; 0 if none is certain";
    registry.register("memprof_growth_bytes_per_second", help, total);
    if functions == 0 {
        return;
    }
    let rates = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    let steady = table.rows.iter().filter_map(|row| Some((row, rate(row)?)));
    for (row, rate) in steady.take(functions) {
        let labels = vec![("function", printable(&row.name).into_owned())];
        rates.get_or_create(&labels).inc_by(rate);
    }
    let help = "Like memprof_growth_bytes_per_second, of the functions that grow most";
    registry.register("memprof_function_growth_bytes_per_second", help, rates);
}

/// The outcomes of pushed profiles.
fn push_figures(registry: &mut Registry, status: &push::Status) {
    let profiles = Family::<Labels, Counter>::default();
    let outcomes = [
        ("delivered", status.delivered),
        ("refused", status.refused),
        ("dropped", status.dropped),
    ];
    for (outcome, count) in outcomes {
        let labels = vec![("outcome", outcome.to_owned())];
        profiles.get_or_create(&labels).inc_by(count);
    }
    let help = "Profiles pushed to a store, by outcome";
    registry.register("memprof_push_profiles", help, profiles);
    let retries: Counter = Counter::default();
    retries.inc_by(status.retries);
    let help = "Attempts to push a profile that failed and were to be repeated";
    registry.register("memprof_push_retries", help, retries);
    let queued: Gauge = Gauge::default();
    queued.set(signed(status.queued));
    let help = "Profiles that wait to be pushed";
    registry.register("memprof_push_queued", help, queued);
    let failing: Gauge = Gauge::default();
    failing.set(i64::from(status.failing));
    let help = "1 if the last attempt to push a profile failed, otherwise 0";
    registry.register("memprof_push_failing", help, failing);
}

/// Converts a number to a gauge's type. Bytes and counts stay far below 2^63.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[derive(Default)]
struct GaugeRegistry(Registry);

impl GaugeRegistry {
    fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Gauge>::default();
        for (labels, value) in values {
            // Truncated or escaped label values may coincide; add them up.
            family.get_or_create(&labels).inc_by(signed(value));
        }
        self.0.register(name, help, family);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        let gauge: Gauge = Gauge::default();
        gauge.set(signed(value));
        self.0.register(name, help, gauge);
    }

    fn target(&mut self, profile: &Profile) {
        let target = &profile.target;
        let labels = vec![
            ("comm", printable(&target.comm).into_owned()),
            ("pid", target.pid.to_string()),
        ];
        self.gauges("memprof_target_info", "Always 1", [(labels, 1)]);
        let alive = u64::from(target.alive);
        let help = "1 if the target is running, 0 if it has ended; its last report stays";
        self.gauge("memprof_target_up", help, alive);
        let processes = target.pids.len() as u64;
        self.gauge("memprof_target_processes", "Followed processes", processes);
        let killed: Counter = Counter::default();
        killed.inc_by(profile.oom_kills.count);
        let help =
            "Followed processes that the out-of-memory killer has killed since memprof began";
        self.0.register("memprof_oom_kills", help, killed);
        let taken = Gauge::<f64, AtomicU64>::default();
        taken.set(millis(profile.taken) as f64 / 1000.0);
        let help = "End of the page scan that these figures come from";
        self.0
            .register("memprof_report_timestamp_seconds", help, taken);
    }

    fn memory(&mut self, profile: &Profile) {
        let of = |amounts: Amounts, kinds: &[Kind]| -> Vec<(Labels, u64)> {
            let value = |kind: &Kind| (vec![kind_label(*kind)], kind.figure(&amounts));
            kinds.iter().map(value).collect()
        };
        let in_bytes = Kind::single()
            .filter(|kind| kind.unit() == Unit::Bytes)
            .filter(|kind| kind.measure().always_stated || profile.counts(*kind));
        let in_bytes: Vec<Kind> = in_bytes.collect();
        let total = profile.total;
        let help = "Resident memory by page scan; anon and shmem are RssAnon + RssShmem";
        self.gauges("memprof_resident_bytes", help, of(total, &RESIDENT));
        self.gauge(
            "memprof_swapped_bytes",
            "Swapped out, not resident",
            total.usage.swap,
        );
        let help = "Page cache that the target's own I/O brought in and that is still cached";
        self.gauge("memprof_page_cache_bytes", help, total.usage.cache);
        for (kind, column) in profile.columns() {
            let (name, help) = column.metric;
            self.gauge(name, &profile.as_counted(help), kind.figure(&total));
        }
        let errors = profile.columns().filter_map(|(kind, _)| {
            let error = profile.total_error(kind);
            (error > 0).then(|| (vec![kind_label(kind)], error))
        });
        let help = "Standard errors of the totals that are estimates, in the unit of the kind";
        self.gauges("memprof_standard_error", help, errors);
        let help = "Bytes with a call stack";
        self.gauges(
            "memprof_attributed_bytes",
            help,
            of(profile.attributed(), &in_bytes),
        );
        let mut reasons = std::collections::BTreeMap::new();
        for row in &profile.not_observed {
            *reasons.entry(row.reason).or_insert_with(Amounts::default) += row.amounts;
        }
        let rows = reasons.into_iter().flat_map(|(reason, amounts)| {
            in_bytes.iter().map(move |kind| {
                let reason = ("reason", reason.name().to_owned());
                (vec![kind_label(*kind), reason], kind.figure(&amounts))
            })
        });
        let help = "Bytes without a call stack, by reason";
        self.gauges("memprof_not_observed_bytes", help, rows);
    }

    fn peak(&mut self, profile: &Profile) {
        let Some(peak) = profile.peak else {
            return;
        };
        let help = "Highest resident memory (anon, shmem, file) since memprof began, whose profile is the mark peak";
        self.gauge("memprof_peak_resident_bytes", help, peak.rss);
        if let Some(bytes) = peak.high_water {
            let help = "The kernel's own figure for it: VmHWM of one process, since the process began; of several, the highest sum \
                of their RSS that memprof saw";
            self.gauge("memprof_kernel_peak_bytes", help, bytes);
        }
    }

    fn kernel(&mut self, profile: &Profile) {
        let sides = [
            ("before", &profile.kernel_before),
            ("after", &profile.kernel_after),
        ];
        let rows = sides.into_iter().flat_map(|(read, k)| {
            let figures = [
                ("smaps_rollup_anonymous", k.anonymous),
                ("rss_anon", Some(k.rss_anon)),
                ("rss_shmem", Some(k.rss_shmem)),
                ("rss_file", Some(k.rss_file)),
                ("vm_swap", Some(k.swap)),
                ("vm_pte", Some(k.page_tables)),
            ];
            figures.into_iter().filter_map(move |(figure, bytes)| {
                let figure = ("figure", figure.to_owned());
                Some((vec![figure, ("read", read.to_owned())], bytes?))
            })
        });
        let help = "The kernel's own figures, read before and after the page scan";
        self.gauges("memprof_kernel_bytes", help, rows);
        let difference: Gauge = Gauge::default();
        difference.set(profile.agreement().outside());
        let help = "By how much anon and shmem lie above (or below, if negative) both of the kernel's figures for them; 0 between them";
        self.0
            .register("memprof_kernel_difference_bytes", help, difference);
    }

    /// The balance of the followed control group, if any.
    fn cgroup(&mut self, profile: &Profile) {
        let Some(group) = profile.cgroup.as_deref() else {
            return;
        };
        let Ok((_, figures)) = &group.charged else {
            return;
        };
        if let Some(usage) = figures.usage {
            let help = "Memory that is charged to the followed control group";
            self.gauge("memprof_cgroup_bytes", help, usage);
        }
        if let Some(peak) = figures.peak {
            let help = "The kernel's own peak of memprof_cgroup_bytes, since the group was made (memory.peak)";
            self.gauge("memprof_cgroup_peak_bytes", help, peak);
        }
        if let Some(limit) = figures.limit {
            let help = "The lowest memory limit of the followed control group and those above it; omitted if there is none";
            self.gauge("memprof_cgroup_limit_bytes", help, limit);
        }
        let charged = Family::<Labels, Gauge>::default();
        let ours = Family::<Labels, Gauge>::default();
        for row in group.balance(&profile.total.usage) {
            let labels = vec![("row", row.name.to_owned())];
            charged.get_or_create(&labels).set(row.charged);
            if let Some(bytes) = row.memprof {
                ours.get_or_create(&labels).set(signed(bytes));
            }
        }
        let help = "The kernel's figures for the group; their sum is memprof_cgroup_bytes, unexplained may be negative";
        self.0
            .register("memprof_cgroup_charged_bytes", help, charged);
        let help = "memprof's sums for the group's processes, beside memprof_cgroup_charged_bytes";
        self.0.register("memprof_cgroup_followed_bytes", help, ours);
        if let Some(kills) = figures.oom_kills {
            let killed: Counter = Counter::default();
            killed.inc_by(kills);
            let help = "Processes of the group that the out-of-memory killer has killed since the group was made";
            self.0.register("memprof_cgroup_oom_kills", help, killed);
        }
    }

    fn stacks(&mut self, profile: &Profile) {
        let outcomes = profile.outcomes();
        let label =
            |outcome: memprof_profile::Outcome| vec![("outcome", outcome.label().to_owned())];
        let stacks = outcomes.iter().map(|(o, stacks, _)| (label(*o), *stacks));
        let help = "Distinct call stacks, by outcome of unwinding";
        self.gauges("memprof_stacks", help, stacks);
        let bytes = outcomes.iter().map(|(o, _, bytes)| (label(*o), *bytes));
        let help = "Bytes (anon, shmem, cache) with a call stack, by outcome of unwinding";
        self.gauges("memprof_stack_bytes", help, bytes);
        let family = |counters: &mut dyn Iterator<Item = &(Cow<'static, str>, u64)>| {
            let family = Family::<Labels, Counter>::default();
            for (what, count) in counters {
                let labels = vec![("what", what.to_string())];
                family.get_or_create(&labels).inc_by(*count);
            }
            family
        };
        let losses = family(&mut profile.losses.lost());
        let help = "Events missed, lost or truncated, by cause; causes without losses are omitted";
        self.0.register("memprof_losses", help, losses);
        let complete = u64::from(profile.losses.have_all_processes());
        let help = "1 if the figures include every process of the target, otherwise 0";
        self.gauge("memprof_report_complete", help, complete);
        let not_counted = family(&mut profile.losses.not_counted());
        let help = "What memprof saw and leaves out of all figures on purpose; nothing is missing";
        self.0.register("memprof_not_counted", help, not_counted);
    }

    /// The functions with the most memory, one row each. Optional, because every function that ever appears adds a
    /// label set.
    fn functions(&mut self, report: &Report, most: usize) {
        if most == 0 {
            return;
        }
        let mut rows = Table::new([report.side()], Kind::All, false).rows;
        let columns = [
            ("self", "hold themselves"),
            ("total", "hold including their callees"),
        ];
        for (column, words) in columns {
            let of = |row: &memprof_profile::tree::TableRow<'_, 1>| match column {
                "self" => row.own[0],
                _ => row.total[0],
            };
            rows.sort_by(|a, b| of(b).cmp(&of(a)).then_with(|| a.code.cmp(&b.code)));
            let values = rows.iter().take(most).map(|row| {
                let function = printable(row.code.function.unwrap_or(NO_SYMBOL));
                let path = row.code.path.to_string_lossy();
                let label = |text: &str| printable(text).into_owned();
                let labels = vec![("file", label(&path)), ("function", label(&function))];
                (labels, of(row))
            });
            let name = format!("memprof_function_{column}_bytes");
            let help = format!("Bytes (anon, shmem, cache) that the top functions {words}");
            self.gauges(&name, &help, values);
        }
    }
}

fn kind_label(kind: Kind) -> (&'static str, String) {
    ("kind", kind.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, kib, profile, symbols};
    use memprof_profile::symbol::Language;

    #[test]
    fn labels_are_printable_and_bounded() {
        let long = "f".repeat(100_000);
        let names = [
            (at(0, 1), "evil\x1b]0;owned\x07\u{202e}", Language::Other),
            (at(0, 2), long.as_str(), Language::Other),
            // Equal to the next name after escaping.
            (at(0, 3), "same\x1b", Language::Other),
            (at(0, 4), "same\x07", Language::Other),
        ];
        let one = |n: u64| ([at(0, n)], kib(4, 0));
        let samples = [1, 2, 3, 4].map(one);
        let samples: Vec<_> = samples.iter().map(|(f, u)| (f.as_slice(), *u)).collect();
        let mut profile = profile(&samples, &[]);
        profile.target.comm = "co\x1bmm".to_owned();
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&names)),
            sequence: 1,
        };
        let mut figures = GaugeRegistry::default();
        figures.target(&report.profile);
        figures.functions(&report, 10);
        let text = Format::OpenMetrics.write(&figures.0).unwrap();
        let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(steers), "{text}");
        let longest = text.lines().map(str::len).max();
        assert!(longest < Some(2_000), "{longest:?}");
        let same = text.lines().filter(|line| line.contains("same"));
        let same: Vec<_> = same.map(|line| line.rsplit_once(' ').unwrap().1).collect();
        assert_eq!(same, ["8192", "8192"]);
    }
}
