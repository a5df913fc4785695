//! Stores that do not take profiles, or only later.

use std::fs;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceResponse,
};
use prost::Message;

use crate::common::listening::certificates;
use crate::common::process::{LIMIT, eventually};
use crate::common::skip::skip;
use crate::common::store::{Answer, Store};
use crate::common::{at, kib, report};
use crate::push::{options, quick, token};
use ::memprof::export::push::{self, Credentials, Limits, PushHandle, Pusher, Status};

fn start(store: &Store) -> (Pusher, PushHandle) {
    push::start(&options("otlp", store), quick()).unwrap()
}

/// Pushes a report with this number of KiB.
fn push(pusher: &mut Pusher, number: u64) {
    let report = report(&[(vec![at(0, 1)], kib(number, 0, 0))], &[], &[]);
    pusher.push(&report).unwrap();
}

/// Waits until the status is so.
#[track_caller]
fn settled(pushing: &PushHandle, done: impl Fn(&Status) -> bool) -> Status {
    eventually(LIMIT, "it settles", || done(&pushing.status()));
    pushing.status()
}

#[test]
fn a_store_that_is_busy_is_asked_again_when_it_says() {
    let store = Store::start();
    let later = |status| Answer::Reply(status, "Retry-After: 1\r\n", b"too busy".to_vec());
    store.answers([later(503), later(429)]);
    let (mut pusher, pushing) = start(&store);
    push(&mut pusher, 4);
    let received = store.wait_for(3);
    for pair in received.windows(2) {
        // The pauses of memprof's own would be far shorter.
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(990));
        assert_eq!(pair[0].body, pair[1].body);
    }
    let status = settled(&pushing, |s| s.delivered == 1);
    assert_eq!((status.retries, status.refused, status.dropped), (2, 0, 0));
    assert_eq!((status.failing, status.queued), (false, 0));
    let why = status.error.unwrap();
    assert!(why.contains("429") && why.contains("too busy"), "{why}");
}

#[test]
fn a_store_that_hangs_or_hangs_up_is_asked_again() {
    let store = Store::start();
    store.answers([
        Answer::Hang,
        Answer::Close,
        Answer::status(502),
        Answer::status(504),
    ]);
    let (mut pusher, pushing) = start(&store);
    push(&mut pusher, 4);
    let status = settled(&pushing, |s| s.delivered == 1);
    assert!(status.retries >= 4, "{status:?}");
    assert_eq!((status.refused, status.dropped), (0, 0));
    assert!(store.received().len() >= 5);
}

#[test]
fn what_a_store_refuses_is_not_sent_again() {
    for (answer, why) in [
        (Answer::status(401), "--push-token-file"),
        (Answer::status(403), "--push-token-file"),
        (Answer::status(404), "takes no profiles"),
        (
            Answer::Reply(400, "", b"bad \x1b[31m time".to_vec()),
            "status 400: bad ",
        ),
        (Answer::status(500), "status 500"),
        (
            Answer::Reply(307, "Location: http://127.0.0.1:1/x\r\n", Vec::new()),
            "redirects to http://127.0.0.1:1/x",
        ),
    ] {
        let store = Store::start();
        store.answers([answer]);
        let (mut pusher, pushing) = start(&store);
        push(&mut pusher, 4);
        let status = settled(&pushing, |s| s.refused == 1);
        let error = status.error.unwrap();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains('\x1b'), "{error}");
        assert_eq!((status.retries, status.queued), (0, 0), "{error}");
        assert!(status.failing);
        // The next one is sent.
        push(&mut pusher, 8);
        let status = settled(&pushing, |s| s.delivered == 1);
        assert!(!status.failing && store.received().len() == 2);
    }
}

#[test]
fn what_a_store_takes_in_part_counts_as_refused() {
    let store = Store::start();
    let reply = ExportProfilesServiceResponse {
        partial_success: Some(ExportProfilesPartialSuccess {
            rejected_profiles: 2,
            error_message: "unknown sample type".into(),
        }),
    };
    store.answers([Answer::Reply(200, "", reply.encode_to_vec())]);
    let (mut pusher, pushing) = start(&store);
    push(&mut pusher, 4);
    let status = settled(&pushing, |s| s.refused == 1);
    let error = status.error.unwrap();
    assert!(
        error.contains("2 of the profiles: unknown sample type"),
        "{error}"
    );
}

#[test]
fn the_queue_is_bounded_and_the_oldest_go() {
    let store = Store::start();
    store.answers(vec![Answer::status(503); 100_000]);
    let limits = Limits {
        profiles: 4,
        ..quick()
    };
    let (mut pusher, pushing) = push::start(&options("parca", &store), limits).unwrap();
    (0..10).for_each(|n| push(&mut pusher, n + 1));
    let status = pushing.status();
    assert_eq!((status.queued, status.dropped), (4, 6), "{status:?}");
    store.takes_everything();
    let before = store.received().len();
    let status = settled(&pushing, |s| s.delivered == 4);
    assert_eq!((status.dropped, status.queued), (6, 0));
    // One more may have been under way; the newest is the last.
    let received = store.received();
    assert!(received.len() <= before + 6, "{before} {}", received.len());
    let last = String::from_utf8(received.last().unwrap().body.clone()).unwrap();
    assert!(last.contains("rawProfile"));
    pushing.finish(LIMIT);
    assert_eq!(pushing.status().dropped, 6);
}

#[test]
fn the_queue_is_bounded_in_bytes() {
    let store = Store::start();
    store.answers(vec![Answer::status(503); 100_000]);
    let (mut pusher, pushing) = start(&store);
    push(&mut pusher, 4);
    let one = pushing.status().queued_bytes as usize;
    let limits = Limits {
        bytes: one * 3,
        ..quick()
    };
    let (mut pusher, pushing) = push::start(&options("otlp", &store), limits).unwrap();
    (0..10).for_each(|_| push(&mut pusher, 4));
    let status = pushing.status();
    assert!(status.queued_bytes <= one as u64 * 3, "{status:?}");
    assert_eq!(status.queued + status.dropped, 10, "{status:?}");
    // What would never fit does not push others out.
    let limits = Limits {
        bytes: one / 2,
        ..quick()
    };
    let (mut pusher, pushing) = push::start(&options("otlp", &store), limits).unwrap();
    push(&mut pusher, 4);
    let status = pushing.status();
    assert_eq!((status.queued, status.dropped), (0, 1), "{status:?}");
}

#[test]
fn the_wait_at_the_end_is_bounded() {
    // A store that takes it after a failure is waited for.
    let store = Store::start();
    store.answers([Answer::status(503)]);
    let (mut pusher, pushing) = start(&store);
    push(&mut pusher, 4);
    pushing.finish(LIMIT);
    let status = pushing.status();
    assert_eq!((status.delivered, status.dropped), (1, 0), "{status:?}");

    // One that hangs is not, nor one that asks for more time than there is.
    let long = Answer::Reply(503, "Retry-After: 300\r\n", Vec::new());
    for answer in [Answer::Hang, long] {
        let store = Store::start();
        store.answers([answer]);
        let limits = Limits {
            request: Duration::from_secs(600),
            ..quick()
        };
        let (mut pusher, pushing) = push::start(&options("otlp", &store), limits).unwrap();
        push(&mut pusher, 4);
        store.wait_for(1);
        push(&mut pusher, 8);
        let began = Instant::now();
        pushing.finish(Duration::from_millis(500));
        assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
        let status = pushing.status();
        assert_eq!((status.delivered, status.dropped), (0, 2), "{status:?}");
        let line = status.line();
        assert!(line.contains("2 profiles not delivered"), "{line}");
    }
}

#[test]
fn a_machine_that_is_not_there_is_said() {
    let store = Store::start();
    let mut options = options("otlp", &store);
    // Nobody listens on the discard port.
    options.destination = push::Destination::parse("otlp+http://127.0.0.1:9").unwrap();
    let (mut pusher, pushing) = push::start(&options, quick()).unwrap();
    push(&mut pusher, 4);
    let status = settled(&pushing, |s| s.retries > 1);
    assert!(status.failing && status.queued == 1, "{status:?}");
    let why = status.error.unwrap();
    assert!(why.contains("refused"), "{why}");
}

#[test]
fn credentials_are_sent_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    let store = Store::start();
    let mut with = options("otlp", &store);
    with.credentials = token(&file);
    let e = push::start(&with, quick()).err().unwrap();
    let said = format!("{e:#}");
    assert!(
        said.contains("cannot read ") && said.contains("secret"),
        "{said}"
    );
    fs::write(&file, "first\n").unwrap();
    store.answers([Answer::status(401)]);
    let (mut pusher, pushing) = push::start(&with, quick()).unwrap();
    push(&mut pusher, 4);
    settled(&pushing, |s| s.refused == 1);
    // It is being replaced.
    fs::remove_file(&file).unwrap();
    push(&mut pusher, 4);
    settled(&pushing, |s| s.delivered == 1);
    fs::write(&file, "second").unwrap();
    push(&mut pusher, 4);
    let received = store.wait_for(3);
    let headers = received.iter().map(|r| r.header("authorization").unwrap());
    let headers: Vec<_> = headers.collect();
    assert_eq!(headers, ["Bearer first", "Bearer first", "Bearer second"]);

    let mut with = options("pyroscope", &store);
    with.credentials = Some(Credentials::Password("user".into(), file));
    let (mut pusher, _pushing) = push::start(&with, quick()).unwrap();
    push(&mut pusher, 4);
    let received = store.wait_for(4);
    let basic = received[3].header("authorization");
    assert_eq!(basic, Some("Basic dXNlcjpzZWNvbmQ="));
    // Nobody else gets a header.
    let (mut pusher, _pushing) = start(&store);
    push(&mut pusher, 4);
    assert_eq!(store.wait_for(5)[4].header("authorization"), None);
}

#[test]
fn a_store_over_tls_needs_a_certificate_that_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let Some([authority, certificate, key]) = certificates(dir.path()) else {
        return skip("openssl is not installed");
    };
    let store = Store::start_tls(&certificate, &key);
    let (mut pusher, pushing) = start(&store);
    push(&mut pusher, 4);
    let status = settled(&pushing, |s| s.retries > 0);
    let why = status.error.unwrap();
    assert!(why.contains("certificate"), "{why}");
    assert!(store.received().is_empty());

    let mut with = options("otlp", &store);
    with.authorities = Some(authority);
    let (mut pusher, pushing) = push::start(&with, quick()).unwrap();
    push(&mut pusher, 4);
    settled(&pushing, |s| s.delivered == 1);
    assert_eq!(store.received().len(), 1);

    with.authorities = Some(key);
    let e = format!("{:#}", push::start(&with, quick()).err().unwrap());
    assert!(
        e.contains("--push-ca") && e.contains("no certificate"),
        "{e}"
    );
}
