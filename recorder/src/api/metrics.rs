//! `/metrics`: figures in the text format of Prometheus.

use std::fmt::Write as _;

use memprof_server::Reply;

use super::Shared;
use super::failure::Failure;
use super::health::CaptureHealth;
use super::stream::MAX_CLIENTS;

/// Labels and value of a sample.
type Sample = (Vec<(&'static str, String)>, u64);

/// Text of metrics that is being written.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str, samples: &[Sample]) {
        let _ = writeln!(self.0, "# HELP tezos_recorder_{name} {help}");
        let _ = writeln!(self.0, "# TYPE tezos_recorder_{name} {kind}");
        for (labels, value) in samples {
            let labels: Vec<_> = labels
                .iter()
                .map(|(label, text)| format!("{label}=\"{}\"", escaped(text)))
                .collect();
            let labels = match labels.join(",") {
                none if none.is_empty() => none,
                labels => format!("{{{labels}}}"),
            };
            let _ = writeln!(self.0, "tezos_recorder_{name}{labels} {value}");
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// All metrics.
pub(super) async fn answer(shared: &Shared) -> Result<Reply, Failure> {
    let mut text = Text::default();
    let version = vec![("version", shared.options.version.clone())];
    text.family(
        "build_info",
        "gauge",
        "The version of the recorder.",
        &[(version, 1)],
    );
    let clients = MAX_CLIENTS - shared.clients.available_permits();
    let one = |value| [(Vec::new(), value)];
    text.family(
        "stream_clients",
        "gauge",
        "Clients of /v4/stream.",
        &one(clients as u64),
    );
    let capture = shared.capture();
    for (name, kind, help, value) in captured(&capture) {
        text.family(name, kind, help, &one(value));
    }
    records(shared, &mut text).await?;
    stores(shared, &mut text);
    reconnects(shared, &mut text);
    Ok(Reply::new(
        "text/plain; version=0.0.4; charset=utf-8",
        text.0,
    ))
}

/// The figures of the capture: name, kind, help, value.
fn captured(capture: &CaptureHealth) -> [(&'static str, &'static str, &'static str, u64); 10] {
    [
        (
            "capture_lost_events_total",
            "counter",
            "Captured events that did not fit into the ring buffer.",
            capture.lost_events,
        ),
        (
            "capture_lost_bytes_total",
            "counter",
            "Bytes of these events, and those that could not be copied.",
            capture.lost_bytes,
        ),
        (
            "capture_dropped_events_total",
            "counter",
            "Captured events that did not fit into the queue to the decoders.",
            capture.dropped_events,
        ),
        (
            "capture_dropped_bytes_total",
            "counter",
            "Bytes of these events.",
            capture.dropped_bytes,
        ),
        (
            "capture_unread_packets_total",
            "counter",
            "IPv6 packets that are not recorded, because of their extension headers.",
            capture.unread_packets,
        ),
        (
            "capture_skipped_events_total",
            "counter",
            "Events at which the kernel did not run the programs.",
            capture.skipped_events,
        ),
        (
            "capture_missed_calls_total",
            "counter",
            "System calls that were not noted.",
            capture.missed_calls,
        ),
        (
            "open_connections",
            "gauge",
            "Connections of nodes that are open.",
            capture.open_connections,
        ),
        (
            "ignored_connections_total",
            "counter",
            "Connections that are none of a node's, or cannot be recorded.",
            capture.ignored_connections,
        ),
        (
            "given_up_connections_total",
            "counter",
            "Connections that are not followed any more because there were too many.",
            capture.given_up_connections,
        ),
    ]
}

/// Numbers of records.
async fn records(shared: &Shared, text: &mut Text) -> Result<(), Failure> {
    let (mut stored, mut total) = (Vec::new(), Vec::new());
    for node in shared.nodes.all() {
        let counts = shared
            .nodes
            .ask(node, |reader| Ok(reader.counts()?))
            .await?;
        for (kind, ids) in [("message", counts.messages), ("log", counts.logs)] {
            let labels = vec![("node", node.name.clone()), ("kind", kind.to_owned())];
            stored.push((labels.clone(), super::v4::stored(ids)));
            total.push((labels, ids.1));
        }
    }
    text.family(
        "records",
        "gauge",
        "Messages and lines of the log that are stored.",
        &stored,
    );
    text.family(
        "records_total",
        "counter",
        "Messages and lines of the log that were ever stored.",
        &total,
    );
    Ok(())
}

/// Connections that were opened before the recorder, by what `--reconnect` did about them.
fn reconnects(shared: &Shared, text: &mut Text) {
    let mut samples: [Vec<Sample>; 4] = Default::default();
    for node in shared.nodes.all() {
        let Some(health) = node.state().reconnect else {
            continue;
        };
        let values = [health.waiting, health.asked, health.skipped, health.failed];
        for (samples, value) in samples.iter_mut().zip(values) {
            samples.push((vec![("node", node.name.clone())], value));
        }
    }
    let names = [
        (
            "waiting",
            "gauge",
            "Older connections about which the node is still to be asked.",
        ),
        (
            "asked_total",
            "counter",
            "Peers with older connections that the node was asked to drop, with success.",
        ),
        (
            "skipped_total",
            "counter",
            "Older connections about which the node was not asked.",
        ),
        (
            "failed_total",
            "counter",
            "Peers with older connections that the node was asked to drop, without success.",
        ),
    ];
    for ((name, kind, help), samples) in names.into_iter().zip(samples) {
        text.family(&format!("reconnect_{name}"), kind, help, &samples);
    }
}

/// The state of the stores.
fn stores(shared: &Shared, text: &mut Text) {
    let of_each = |value: fn(&crate::store::Health) -> u64| -> Vec<Sample> {
        let nodes = shared.nodes.all().iter();
        nodes
            .map(|node| {
                (
                    vec![("node", node.name.clone())],
                    value(&node.store.health()),
                )
            })
            .collect()
    };
    for (name, kind, help, value) in STORE {
        text.family(name, kind, help, &of_each(*value));
    }
}

/// Name, type, help and value.
type StoreFigure = (
    &'static str,
    &'static str,
    &'static str,
    fn(&crate::store::Health) -> u64,
);

const STORE: &[StoreFigure] = &[
    (
        "store_bytes",
        "gauge",
        "Size of the store on disk, in bytes.",
        |h| h.bytes,
    ),
    (
        "store_queue_entries",
        "gauge",
        "Entries that wait to be written.",
        |h| h.queue.entries,
    ),
    (
        "store_dropped_total",
        "counter",
        "Entries that did not fit into the queue before the store.",
        |h| h.queue.dropped,
    ),
    (
        "store_dropped_bytes_total",
        "counter",
        "Size of the entries that did not fit, in bytes.",
        |h| h.queue.dropped_bytes,
    ),
    (
        "store_failed_total",
        "counter",
        "Entries that could not be written.",
        |h| h.failed,
    ),
    (
        "store_errors_total",
        "counter",
        "Errors of the store.",
        |h| h.errors,
    ),
    (
        "store_damaged_files",
        "gauge",
        "Files of the store that are damaged, and are not read.",
        |h| h.damaged.len() as u64,
    ),
];
