//! `/debug/memory`: the target's memory by category, only for clients on this machine.
//!
//! Needs `cc`. Without a non-loopback address, the part that needs one is reported as skipped.

use std::net::IpAddr;
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;

use crate::common::process::stop;
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::common::{Fixed, Server};
use memprof::http::server::ServerOptions;
use memprof_profile::Report;
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// A report whose target is these processes.
fn fixed_report(pids: &[Pid]) -> Fixed {
    let report = crate::common::report(&[], &[crate::common::kib(4, 0, 0)], &[]);
    let mut profile = report.profile.as_ref().clone();
    profile.target.pid = pids[0];
    profile.target.pids = pids.to_vec();
    let profile = Arc::new(profile);
    Fixed(Ok(Arc::new(Report {
        profile,
        ..report.as_ref().clone()
    })))
}

fn stopped() -> Workload {
    let mut workload = Workload::start(&program("scenarios"));
    workload.lines.tell("mmap 8388608");
    stop(workload.pid());
    workload
}

#[test]
fn the_sums_are_the_kernels() {
    let _others = crate::beside_others();
    let workload = stopped();
    let server = Server::start(fixed_report(&[workload.pid()]), ServerOptions::default());
    let reply = server.get("/debug/memory?top=3");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = reply.text();
    let content_type = reply.header("content-type");
    assert_eq!(content_type, Some("text/plain; charset=utf-8"));
    let rss = figures::rollup(workload.pid()).unwrap().rss >> 10;
    let total = text.lines().find(|l| l.ends_with("  total")).unwrap();
    assert!(
        total.split_whitespace().any(|w| w == rss.to_string()),
        "{rss}: {text}"
    );
    assert!(text.contains("equal the kernel's total."), "{text}");
    let mappings = text.split("Mappings, in KiB:").nth(1).unwrap();
    // A heading, three mappings, and the number of the others.
    assert_eq!(mappings.trim().lines().count(), 5, "{text}");
    server.stop();
}

#[test]
fn parameters() {
    let _others = crate::beside_others();
    let workload = stopped();
    let (pid, other) = (workload.pid(), stopped());
    let followed = [pid, other.pid()];
    let server = Server::start(fixed_report(&followed), ServerOptions::default());
    let status = |query: &str| server.get(&format!("/debug/memory{query}")).status;
    assert_eq!(
        (status(""), status("?top=0"), status("?top=10000")),
        (200, 200, 200)
    );
    for query in [
        "?top=10001",
        "?top=-1",
        "?top=",
        "?pid=x",
        "?pid=1",
        "?all",
        "?top=1&top=1",
    ] {
        assert_eq!((query, status(query)), (query, 400));
    }
    for pid in followed {
        let reply = server.get(&format!("/debug/memory?pid={pid}"));
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains(&format!("(pid {pid})")));
    }
    server.stop();
    // A target that has ended.
    let server = Server::start(
        fixed_report(&[Pid(u32::MAX >> 1)]),
        ServerOptions::default(),
    );
    let reply = server.get("/debug/memory");
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("has ended"), "{}", reply.text());
    server.stop();
}

/// Addresses are only for clients on this machine, whatever the options allow to others.
#[test]
fn pages_of_elsewhere_and_proxies_are_refused() {
    let _others = crate::beside_others();
    let workload = stopped();
    let options = ServerOptions {
        cors_origins: vec!["*".to_owned()],
        ..ServerOptions::default()
    };
    let server = Server::start(fixed_report(&[workload.pid()]), options);
    let ask = |headers: &[(&str, &str)]| server.request("GET", "/debug/memory", headers);
    assert_eq!(ask(&[]).status, 200);
    assert_eq!(ask(&[("Host", "localhost")]).status, 200);
    for headers in [
        &[("Origin", "http://evil.example")][..],
        &[("Origin", "null")],
        &[("Host", "evil.example")],
        &[("Host", "evil.example"), ("Origin", "http://evil.example")],
        &[("Host", "evil.example"), ("Sec-Fetch-Site", "same-origin")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("X-Forwarded-For", "10.0.0.1")],
        &[("Forwarded", "for=10.0.0.1")],
        &[("Via", "1.1 proxy")],
    ] {
        let reply = ask(headers);
        assert_eq!(reply.status, 403, "{headers:?}");
        assert!(reply.text().contains("memprof maps"), "{}", reply.text());
    }
    let elsewhere = server.request("GET", "http://evil.example/debug/memory", &[]);
    assert_eq!(elsewhere.status, 403);
    server.stop();
}

#[test]
fn another_machine_is_refused() {
    let _others = crate::beside_others();
    let own = |ip: &IpAddr| !ip.is_loopback() && ip.is_ipv4();
    let address = getifaddrs().unwrap().find_map(|interface| {
        let address = interface.address?;
        let ip = IpAddr::from(address.as_sockaddr_in()?.ip());
        Some(ip).filter(own)
    });
    let Some(address) = address else {
        skip("there is no address beside loopback");
        return;
    };
    let workload = stopped();
    // The kernel uses this address as the source address, too.
    let server = Server::start_at(
        address,
        fixed_report(&[workload.pid()]),
        ServerOptions::default(),
    );
    assert_eq!(server.get("/v1/pid").status, 200);
    let reply = server.get("/debug/memory");
    assert_eq!(reply.status, 403);
    assert!(reply.text().contains("only programs on this machine"));
    server.stop();
}

/// The id of a process that has ended may be another's by now.
#[test]
fn the_memory_of_another_process_with_the_id_is_not_shown() {
    let _others = crate::beside_others();
    let workload = stopped();
    let Fixed(report) = fixed_report(&[workload.pid()]);
    let report = report.unwrap();
    let mut profile = report.profile.as_ref().clone();
    profile.target.alive = false;
    let ended = Fixed(Ok(Arc::new(Report {
        profile: Arc::new(profile),
        ..report.as_ref().clone()
    })));
    let server = Server::start(ended, ServerOptions::default());
    let reply = server.get("/debug/memory");
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.text().contains("has ended"), "{}", reply.text());
    server.stop();
}
