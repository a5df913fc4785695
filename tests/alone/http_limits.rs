//! Clients that strain the server: thousands of connections, slow readers, endless requests, invalid requests.
//!
//! File descriptors and their limit belong to the whole process, so these tests take turns.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, RwLockWriteGuard};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use proptest::prelude::*;
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

use crate::common::effort;
use crate::common::invalid_requests::INVALID_REQUESTS;
use crate::common::process::eventually;
use crate::common::{Fixed, Reply, Server, at, kib, report};
use memprof::collect::ProviderError;
use memprof::http::api::{BoxFuture, Provider};
use memprof::http::server::ServerOptions;
use memprof_profile::Report;
use memprof_sys::ids::Pid;

fn turn() -> RwLockWriteGuard<'static, ()> {
    static ONCE: Once = Once::new();
    let turn = crate::alone();
    // The first runtime opens descriptors that the process keeps.
    ONCE.call_once(|| Server::start(wide(1), ServerOptions::default()).stop());
    turn
}

/// A tree with this many nodes; each takes more than a hundred bytes of JSON.
fn wide(nodes: u64) -> Fixed {
    let samples: Vec<_> = (0..nodes).map(|n| (vec![at(0, n)], kib(4, 0, 0))).collect();
    Fixed(Ok(report(&samples, &[], &[])))
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident anonymous memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        << 10
}

/// Longer than anything takes on a busy machine, and shorter than the server's default timeouts (for a header:
/// 30 s).
const PATIENCE: Duration = Duration::from_secs(20);

fn milliseconds(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Whether the server closes the connection within the timeout without sending another byte.
fn closes(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0))
        || stream
            .read(&mut [0; 1])
            .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
}

fn whole_body(stream: &mut TcpStream) -> Vec<u8> {
    let mut out = Vec::new();
    stream.read_to_end(&mut out).unwrap();
    Reply::parse(&out).body
}

const REQUEST: &[u8] =
    b"GET /v1/tree?threshold=0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// One of many clients: sends a request, reads at its own pace, compares every byte.
async fn client(number: usize, address: std::net::SocketAddr, wanted: Arc<Vec<u8>>) {
    let slow = number.is_multiple_of(40);
    let socket = TcpSocket::new_v4().unwrap();
    if slow {
        socket.set_recv_buffer_size(4096).unwrap();
    }
    let stream = socket.connect(address).await.unwrap();
    let mut request = REQUEST;
    while !request.is_empty() {
        stream.writable().await.unwrap();
        if let Ok(sent) = stream.try_write(request) {
            request = &request[sent..];
        }
    }
    let mut head = Vec::new();
    let mut matched = None;
    let mut buffer = vec![0; if slow { 8 << 10 } else { 64 << 10 }];
    loop {
        stream.readable().await.unwrap();
        let got = match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => &buffer[..got],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => panic!("client {number}: {error}"),
        };
        let body = match matched {
            Some(_) => got,
            None => {
                head.extend_from_slice(got);
                match head.windows(4).position(|w| w == b"\r\n\r\n") {
                    Some(end) => &head[end + 4..],
                    None => continue,
                }
            }
        };
        let from = matched.unwrap_or(0);
        assert!(
            body == &wanted[from..from + body.len()],
            "client {number} got another reply"
        );
        matched = Some(from + body.len());
        if slow {
            sleep(milliseconds(20)).await;
        }
    }
    assert_eq!(matched, Some(wanted.len()), "client {number}");
}

/// Counts the requests.
struct Counting(Fixed, Arc<AtomicUsize>);

impl Provider for Counting {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.profile()
    }

    fn pid(&self) -> Option<Pid> {
        self.0.pid()
    }
}

#[test]
fn ten_thousand_requests_at_once() {
    let _turn = turn();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let clients = 10_000.min((hard.max(soft) as usize).saturating_sub(2_000));
    setrlimit(Resource::RLIMIT_NOFILE, hard.max(soft), hard).unwrap();
    let files = open_files();
    let asked = Arc::new(AtomicUsize::new(0));
    let server = Server::start(
        Counting(wide(1_000), Arc::clone(&asked)),
        ServerOptions::default(),
    );
    let wanted = Arc::new(server.get("/v1/tree?threshold=0").body);
    assert!(wanted.len() > 100_000);
    let memory = resident();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..clients {
            tasks.spawn(client(number, server.address, Arc::clone(&wanted)));
        }
        let all = async {
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
        };
        timeout(Duration::from_secs(180), all)
            .await
            .expect("every client is served");
    });
    drop(runtime);
    let growth = resident().saturating_sub(memory);
    assert!(growth < 300 << 20, "{clients} clients cost {growth} bytes");
    assert_eq!(asked.load(Ordering::Relaxed), clients + 1);
    server.stop();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    eventually(PATIENCE, "no file descriptor is left open", || {
        open_files() <= files
    });
}

#[test]
fn a_header_that_never_ends_is_cut_off() {
    let _turn = turn();
    let files = open_files();
    let server = Server::start_with(wide(1), |o| o.header_timeout = milliseconds(1_000));
    let mut silent: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for (number, stream) in silent.iter_mut().enumerate() {
        let part = &REQUEST[..number.min(REQUEST.len() - 1)];
        stream.write_all(part).unwrap();
    }
    // Nobody waits for them.
    assert_eq!(server.get("/v1/tree").status, 200);
    let start = Instant::now();
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
    assert!(start.elapsed() < PATIENCE);
    let mut dripping = server.connect();
    // A byte must not extend the timeout.
    eventually(PATIENCE, "the dripping client is cut off", || {
        dripping.write_all(b"G").is_err()
    });
    drop(dripping);
    server.stop();
    eventually(PATIENCE, "no file descriptor is left open", || {
        open_files() <= files
    });
}

#[test]
fn a_connection_serves_many_requests_and_does_not_idle_forever() {
    let _turn = turn();
    let server = Server::start_with(wide(1), |o| o.header_timeout = milliseconds(2_000));
    let mut stream = server.connect();
    let ask = b"GET /v1/pid HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut buffer = [0; 4096];
    // In total longer than the timeout of a header, each header far below it.
    for _ in 0..3 {
        std::thread::sleep(milliseconds(800));
        stream.write_all(ask).unwrap();
        let got = stream.read(&mut buffer).unwrap();
        assert_eq!(Reply::parse(&buffer[..got]).text(), "4711");
    }
    assert!(closes(&mut stream));
    let pipelined = [&ask[..], REQUEST].concat();
    let out = String::from_utf8(server.raw(&pipelined)).unwrap();
    assert_eq!(out.matches("HTTP/1.1 200 OK").count(), 2);
    server.stop();
}

/// A reply that is larger than the socket buffers of both ends.
fn large() -> Arc<Report> {
    wide(200_000).0.unwrap()
}

#[test]
fn a_slow_reader_gets_everything() {
    let _turn = turn();
    let server = Server::start_with(Fixed(Ok(large())), |o| {
        o.header_timeout = milliseconds(1_000)
    });
    let mut slow = server.connect();
    slow.write_all(REQUEST).unwrap();
    let mut out = vec![0; 1 << 20];
    slow.read_exact(&mut out).unwrap();
    // Longer than the timeout of a header.
    std::thread::sleep(milliseconds(1_500));
    slow.read_to_end(&mut out).unwrap();
    let body = Reply::parse(&out).body;
    assert!(body.len() > 20 << 20);
    let quick = Server::start(Fixed(Ok(large())), ServerOptions::default());
    assert!(body == quick.get("/v1/tree?threshold=0").body);
    quick.stop();
    server.stop();
}

#[test]
fn a_reader_that_does_not_read_is_let_go() {
    let _turn = turn();
    let files = open_files();
    let report = large();
    let server = Server::start_with(Fixed(Ok(Arc::clone(&report))), |o| {
        o.exchange_timeout = milliseconds(2_000)
    });
    let mut dead = server.connect();
    dead.write_all(REQUEST).unwrap();
    // Many times the timeout: the server closes the connection before the client reads.
    std::thread::sleep(milliseconds(7_000));
    let mut out = Vec::new();
    let _ = dead.read_to_end(&mut out);
    let whole = Server::start(Fixed(Ok(report)), ServerOptions::default());
    assert!(out.len() < whole.get("/v1/tree?threshold=0").body.len());
    whole.stop();
    drop(dead);
    server.stop();
    eventually(PATIENCE, "no file descriptor is left open", || {
        open_files() <= files
    });
}

#[test]
fn clients_that_go_away_leave_nothing() {
    let _turn = turn();
    let files = open_files();
    let server = Server::start(wide(20_000), ServerOptions::default());
    for number in 0..200 {
        let mut stream = server.connect();
        stream.write_all(REQUEST).unwrap();
        if number % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    let mut last = server.connect();
    last.write_all(REQUEST).unwrap();
    assert!(!whole_body(&mut last).is_empty());
    drop(last);
    server.stop();
    eventually(PATIENCE, "no file descriptor is left open", || {
        open_files() <= files
    });
}

#[test]
fn rubbish_is_refused() {
    let _turn = turn();
    let server = Server::start_with(wide(1), |o| o.header_timeout = milliseconds(1_000));
    let status = |request: &[u8]| {
        let out = server.raw(request);
        (!out.is_empty()).then(|| Reply::parse(&out).status)
    };
    for request in INVALID_REQUESTS {
        let status = status(request);
        assert!(
            matches!(status, None | Some(400)),
            "{request:?}: {status:?}"
        );
    }
    let long = format!(
        "GET /v1/tree?x={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(10_000)
    );
    assert_eq!(status(long.as_bytes()), Some(414));
    let huge = format!(
        "GET /v1/pid HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    assert!(matches!(status(huge.as_bytes()), None | Some(431)));
    let many = format!(
        "GET /v1/pid HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X: y\r\n".repeat(1_000)
    );
    assert_eq!(status(many.as_bytes()), Some(431));
    let body = format!(
        "GET /v1/pid HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n{}",
        "x".repeat(9)
    );
    assert_eq!(status(body.as_bytes()), Some(200));
    assert_eq!(server.get("/v1/pid").text(), "4711");
    server.stop();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: effort::rounds(60), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_harm_the_server(bytes in proptest::collection::vec(any::<u8>(), 0..200), target in "[ -~]{0,60}") {
        static SERVER: Mutex<Option<Server>> = Mutex::new(None);
        let _turn = turn();
        let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        let server = server.get_or_insert_with(|| Server::start(wide(1), ServerOptions::default()));
        let line = format!("GET /v1/tree?{target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        for request in [bytes.as_slice(), line.as_bytes()] {
            let mut stream = server.connect();
            stream.write_all(request).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
        prop_assert_eq!(server.get("/v1/pid").status, 200);
    }
}

/// Two different body lengths allow request smuggling past a proxy.
#[test]
fn no_request_hides_in_another() {
    let _turn = turn();
    let server = Server::start(wide(1), ServerOptions::default());
    let hidden = "0\r\n\r\nGET /v1/pid HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let length = format!("Content-Length: {}\r\n", hidden.len());
    let chunked = "Transfer-Encoding: chunked\r\n";
    for method in ["POST /v2/marks", "GET /v1/pid", "GET /"] {
        for headers in [
            format!("{length}{chunked}"),
            format!("{chunked}{length}"),
            chunked.to_owned(),
        ] {
            let request = format!("{method} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{hidden}");
            let out = String::from_utf8(server.raw(request.as_bytes())).unwrap();
            assert!(out.starts_with("HTTP/1.1 400 "), "{request}:\n{out}");
            assert!(out.contains("\r\nconnection: close\r\n"), "{out}");
            assert_eq!(out.matches("HTTP/1.1").count(), 1, "{out}");
        }
    }
    assert_eq!(
        server.get("/v2/marks").json()["marks"],
        serde_json::json!([])
    );
    server.stop();
}

/// Clients that send nothing, an endless header, or no body.
#[test]
fn who_holds_all_connections_shuts_nobody_out() {
    let _turn = turn();
    let server = Server::start_with(wide(1), |o| {
        o.max_connections = 64;
        o.header_timeout = Duration::from_secs(3600);
        o.exchange_timeout = Duration::from_secs(3600);
    });
    let parts = [
        "",
        "GET /v1/tr",
        "POST /v2/marks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
    ];
    let mut held: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for (number, stream) in held.iter_mut().enumerate() {
        // The server may have closed it already.
        let _ = stream.write_all(parts[number % parts.len()].as_bytes());
    }
    let start = Instant::now();
    assert_eq!(server.get("/v2/health").status, 200);
    assert_eq!(server.get("/v1/tree").status, 200);
    let took = start.elapsed();
    assert!(took < PATIENCE, "{took:?}");
    drop(held);
    server.stop();
}

#[test]
fn health_is_answered_while_requests_hang() {
    let _turn = turn();
    let options = ServerOptions {
        max_connections: 16,
        answer_timeout: Duration::from_secs(3600),
        exchange_timeout: Duration::from_secs(3600),
        ..ServerOptions::default()
    };
    let server = Server::start(
        Slow(wide(1), Duration::from_secs(3600), Arc::default()),
        options,
    );
    let mut asking: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for stream in &mut asking {
        stream.write_all(REQUEST).unwrap();
    }
    let start = Instant::now();
    assert_eq!(server.get("/v2/health").status, 200);
    let took = start.elapsed();
    assert!(took < PATIENCE, "{took:?}");
    let mut told = 0;
    for mut stream in asking {
        stream.set_read_timeout(Some(milliseconds(50))).unwrap();
        let mut out = Vec::new();
        if stream.read_to_end(&mut out).is_ok() && !out.is_empty() {
            let reply = Reply::parse(&out);
            assert_eq!(
                (reply.status, reply.header("retry-after")),
                (503, Some("5"))
            );
            told += 1;
        }
    }
    // The number of remaining connections is the limit; one of them asked for health.
    assert!(told >= 40 - 16, "{told}");
    server.stop();
}

/// The work for different replies is queued, and the queue is bounded.
#[test]
fn replies_are_made_in_turns_and_the_rest_told() {
    let _turn = turn();
    let server = Server::start(wide(20_000), ServerOptions::default());
    let mut asking: Vec<_> = (0..300).map(|_| server.connect()).collect();
    for (number, stream) in asking.iter_mut().enumerate() {
        let request = format!(
            "GET /v2/tree?search=x{number} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
    }
    let start = Instant::now();
    let metrics = server.get("/metrics");
    let took = start.elapsed();
    let mut made = 0;
    for mut stream in asking {
        let mut out = Vec::new();
        stream.read_to_end(&mut out).unwrap();
        let reply = Reply::parse(&out);
        match reply.status {
            200 => made += 1,
            status => assert_eq!((status, reply.header("retry-after")), (503, Some("5"))),
        }
    }
    let all = start.elapsed();
    println!("{made} trees in {all:?}; metrics after {took:?}");
    assert!((64..300).contains(&made), "{made}");
    assert_eq!(metrics.status, 200);
    assert!(took < all / 2, "metrics took {took:?} of {all:?}");
    server.stop();
}

#[test]
fn connections_beyond_the_limit_wait() {
    let _turn = turn();
    let server = Server::start_with(wide(1), |o| o.max_connections = 2);
    // Connections are accepted in the order of their arrival.
    let held = [server.connect(), server.connect()];
    let mut third = server.connect();
    third.write_all(REQUEST).unwrap();
    third.set_read_timeout(Some(milliseconds(300))).unwrap();
    assert!(third.read(&mut [0; 1]).is_err());
    drop(held);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(!whole_body(&mut third).is_empty());
    server.stop();
}

/// Answers after a delay; counts the requests.
struct Slow(Fixed, Duration, Arc<AtomicUsize>);

impl Provider for Slow {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        self.2.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            sleep(self.1).await;
            self.0.profile().await
        })
    }

    fn pid(&self) -> Option<Pid> {
        None
    }
}

#[test]
fn a_report_that_never_comes_is_said() {
    let _turn = turn();
    let never = Slow(wide(1), Duration::from_secs(3600), Arc::default());
    let server = Server::start_with(never, |o| o.answer_timeout = milliseconds(200));
    let reply = server.get("/v1/tree");
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("longer than"));
    assert_eq!(server.get("/v1/pid").text(), "0");
    server.stop();
}

#[test]
fn shutdown_finishes_what_is_under_way_and_no_more() {
    let _turn = turn();
    let options = ServerOptions {
        shutdown_grace: Duration::from_secs(3),
        ..ServerOptions::default()
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let slow = Slow(wide(1), milliseconds(500), Arc::clone(&asked));
    let mut server = Server::start(slow, options);
    let idle = server.connect();
    let mut stuck = server.connect();
    stuck.write_all(b"GET /v1/tr").unwrap();
    let mut asking = server.connect();
    asking.write_all(REQUEST).unwrap();
    eventually(PATIENCE, "the request is under way", || {
        asked.load(Ordering::Relaxed) == 1
    });
    let start = Instant::now();
    server.begin_stop();
    assert!(!whole_body(&mut asking).is_empty());
    eventually(PATIENCE, "nothing listens any more", || {
        TcpStream::connect(server.address).is_err()
    });
    server.stop();
    // Less than the timeout of a header.
    assert!(start.elapsed() < PATIENCE);
    drop((idle, stuck));
}

#[test]
fn running_out_of_files_is_not_the_end() {
    let _turn = turn();
    let warned = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&warned);
    let options = ServerOptions {
        warn: Some(Arc::new(move |message: &str| {
            assert!(message.contains("cannot accept"));
            count.fetch_add(1, Ordering::Relaxed);
        })),
        ..ServerOptions::default()
    };
    let server = Server::start(wide(1), options);
    assert_eq!(server.get("/v1/pid").status, 200);
    let client = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The lowest free descriptor becomes the limit: no further one can be opened.
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, lowest, hard).unwrap();
    let connected = connect(client.as_raw_fd(), &SockaddrStorage::from(server.address));
    let start = Instant::now();
    while warned.load(Ordering::Relaxed) == 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(milliseconds(10));
    }
    // It retries, and warns once.
    std::thread::sleep(milliseconds(400));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    connected.unwrap();
    assert_eq!(warned.load(Ordering::Relaxed), 1);
    let mut client = TcpStream::from(client);
    client.write_all(REQUEST).unwrap();
    assert!(!whole_body(&mut client).is_empty());
    server.stop();
}
