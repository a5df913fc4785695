//! Errors outside memprof: privileges, kernels, files, targets, requests. Each results in a message
//! that says what was attempted, why it failed and what to do, in the right exit status, and in no panic;
//! nothing leaks. Runs as root.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::common::binary::{
    Kept, MEMPROF, Memprof, PATIENCE, in_own_mounts, memprof, no_panic, run, status,
};
use crate::common::invalid_requests::INVALID_REQUESTS;
use crate::common::programs::copy_program;
use crate::common::skip::skip;

/// A directory that every user can access, on a disk file system.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A C program in `dir`.
fn compile(dir: &Path, name: &str, source: &str) -> PathBuf {
    let (from, to) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&from, source).unwrap();
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-fno-omit-frame-pointer", "-o"])
        .args([&to, &from])
        .status()
        .expect("cc is needed for these tests");
    assert!(status.success());
    to
}

/// Runs memprof as a user without privileges.
fn as_nobody(args: &[&str]) -> crate::common::binary::Ended {
    let dir = directory();
    let copy = dir.path().join("memprof");
    copy_program(MEMPROF, &copy);
    run(Command::new(&copy).args(args).uid(65534).gid(65534))
}

#[test]
fn not_root() {
    let ended = as_nobody(&["--comm", "nobody-has-this-name"]);
    ended.must(1, &["privileges", "user id 65534", "sudo memprof"]);
}

#[test]
fn root_without_the_capabilities() {
    let caps = "-bpf,-perfmon,-sys_admin";
    let ended = run(Command::new("setpriv")
        .args(["--bounding-set", caps, "--inh-caps", caps, MEMPROF])
        .args(["--pid", "1", "--no-server"]));
    ended.must(1, &["privileges", "CAP_BPF", "--privileged"]);
}

#[test]
fn no_type_information() {
    let ended =
        in_own_mounts("mount -t tmpfs none /sys/kernel/btf; exec \"$MEMPROF\" --pid 1 --no-server");
    ended.must(
        1,
        &[
            "there is no /sys/kernel/btf/vmlinux",
            "CONFIG_DEBUG_INFO_BTF",
        ],
    );
}

#[test]
fn tracefs_is_not_needed() {
    let target = Kept::idle();
    let script = format!(
        "umount -R /sys/kernel/tracing 2>/dev/null || true
         umount -R /sys/kernel/debug 2>/dev/null || true
         exec \"$MEMPROF\" --pid {} --no-server --duration 0.2",
        target.pid()
    );
    let ended = in_own_mounts(&script);
    ended.must(0, &["following"]);
}

#[test]
fn no_proc() {
    let ended = in_own_mounts("mount -t tmpfs none /proc; exec \"$MEMPROF\" --pid 1 --no-server");
    ended.must(1, &["cannot read /proc/self/status", "mount -t proc"]);
}

#[test]
fn no_such_process() {
    memprof(&["--pid", "2147483647", "--no-server"])
        .must(1, &["process 2147483647", "no such process"]);
    memprof(&["maps", "--pid", "2147483647"]).must(1, &["no such process: 2147483647"]);
}

#[test]
fn a_kernel_thread() {
    let stat = fs::read_to_string("/proc/2/stat").unwrap_or_default();
    if !stat.contains("(kthreadd)") {
        skip("process 2 is no kernel thread (a pid namespace?)");
        return;
    }
    for args in [&["--pid", "2", "--no-server"][..], &["maps", "--pid", "2"]] {
        memprof(args).must(1, &["process 2 (kthreadd)", "is a kernel thread"]);
    }
}

/// Root in a user namespace has all capabilities, but only there: it must not be told to become root.
#[test]
fn a_process_that_is_protected_from_root() {
    let target = Kept::idle();
    let (pid, file) = (target.pid(), format!("/proc/{}/smaps_rollup", target.pid()));
    let args = ["--user", "--map-root-user", MEMPROF, "maps", "--pid", &pid];
    let ended = run(Command::new("unshare").args(args));
    let denied = format!("cannot read {file}: permission denied (EACCES)");
    ended.must(1, &[&denied, "user namespace", "outside of containers"]);
    assert!(!ended.stderr.contains("as root"), "{ended:?}");
    // As an ordinary user: that is what helps.
    let ended = as_nobody(&["maps", "--pid", &pid]);
    ended.must(1, &[&denied, "run memprof as root"]);
}

/// memprof needs no tracefs: whether it is mounted, and who may read it, is no finding.
#[test]
fn doctor_as_an_ordinary_user() {
    let ended = as_nobody(&["doctor"]);
    ended.must(1, &[]);
    let out = &ended.stdout;
    assert!(
        !out.contains("tracefs") && !out.contains("mounted"),
        "{out}"
    );
    for part in ["missing   privileges", "ok        page-cache tracepoints"] {
        assert!(out.contains(part), "{out}");
    }
}

#[test]
fn a_zombie() {
    // A child of this process, which is reaped only after the test.
    let child = Kept::start(&mut Command::new("true"));
    let pid = child.pid();
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start = Instant::now();
    while !state().contains(") Z ") {
        assert!(start.elapsed() < PATIENCE, "{}", state());
        std::thread::sleep(Duration::from_millis(5));
    }
    memprof(&["--pid", &pid, "--no-server"]).must(1, &[&pid, "zombie"]);
}

#[test]
fn a_target_that_dies_while_it_is_attached_to() {
    for n in 0..12 {
        let target = Kept::start(Command::new("sleep").arg(format!("{}", f64::from(n) * 0.06)));
        let pid = target.pid();
        // Reaped at once, as a shell does.
        let reaper = std::thread::spawn(move || {
            let mut target = target;
            target.0.wait().unwrap();
        });
        let ended = memprof(&["--pid", &pid, "--no-server"]);
        reaper.join().unwrap();
        no_panic(&ended.stderr);
        match ended.status.code() {
            Some(0) => assert!(ended.stderr.contains("following"), "{ended:?}"),
            Some(1) => assert!(ended.stderr.contains(&pid), "{ended:?}"),
            _ => panic!("{ended:?}"),
        }
    }
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = memprof(&["--pid", "1", "--listen", &address]);
    ended.must(1, &[&address, "--listen"]);
    assert_eq!(ended.stderr.matches("in use").count(), 1, "{ended:?}");
}

#[test]
fn wrong_command_lines() {
    for (args, part) in [
        (&["--pid", "1", "--listen", "nowhere"][..], "--listen"),
        (&["--pid", "1", "--listen", "127.0.0.1:99999"], "--listen"),
        (&["--pid", "1", "-o", "x", "--format", "gif"], "json"),
        (&["--pid", "0"], "above 0"),
        (&["--pid", "one"], "process id"),
        (&["--comm", "a/b"], "without directories"),
        (
            &["--pid", "1", "-o", "x.bin"],
            ".pb.gz            --format pprof",
        ),
        (&["--pid", "1", "--wait", "1"], "--wait"),
        (&["--wait", "1", "--", "true"], "--wait"),
        (&[], "--comm"),
        (&["--pid", "1", "--unknown"], "--unknown"),
    ] {
        memprof(args).must(2, &[part]);
    }
}

#[test]
fn an_address_that_is_not_ours() {
    memprof(&["--pid", "1", "--listen", "192.0.2.1:17832"]).must(1, &["192.0.2.1", "--listen"]);
}

#[test]
fn who_can_reach_another_address_is_said() {
    let target = Kept::idle();
    for (address, warned) in [
        ("0.0.0.0:0", true),
        ("[::1]:0", false),
        ("127.0.0.2:0", false),
    ] {
        let args = [
            "--pid",
            &target.pid(),
            "--duration",
            "0.1",
            "--listen",
            address,
        ];
        let ended = memprof(&args);
        ended.must(0, &["serving http://"]);
        let warning = "warning: 0.0.0.0 is not a loopback address";
        assert_eq!(ended.stderr.contains(warning), warned, "{ended:?}");
    }
}

#[test]
fn a_process_that_does_not_come() {
    for (wait, said) in [("0", "0 s"), ("0.3", "0.3 s")] {
        let args = [
            "--comm",
            "nobody-has-it",
            "--wait",
            wait,
            "--listen",
            "127.0.0.1:0",
        ];
        let waiting = format!("waiting for a process named nobody-has-it for at most {said}");
        let ended = memprof(&args);
        ended.must(
            124,
            &[&waiting, &format!("waited {said} for a process"), "none"],
        );
    }
}

#[test]
fn an_output_that_cannot_be_written() {
    let (dir, target) = (directory(), Kept::idle());
    let missing = text(&dir.path().join("missing/profile.json"));
    let whole = text(dir.path());
    for path in [&missing, &whole] {
        // memprof must fail at the start: the target runs for ten minutes.
        let ended = memprof(&["--pid", &target.pid(), "--no-server", "-o", path]);
        ended.must(1, &[path, "--output"]);
        assert!(!ended.stderr.contains("following"), "{ended:?}");
    }
}

#[test]
fn an_output_stays_until_the_profile_is_there() {
    let (dir, target) = (directory(), Kept::idle());
    let path = dir.path().join("profile.json");
    fs::write(&path, "of yesterday").unwrap();
    let pid = target.pid();
    let memprof = Memprof::start(
        &["--pid", &pid, "-o", &text(&path)],
        &format!("(pid {pid})"),
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "of yesterday");
    memprof.end();
    let profile: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(profile["value"].as_u64().unwrap() > 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn malformed_requests() {
    let target = Kept::idle();
    let memprof = Memprof::follow(&target.pid());
    let before = memprof.descriptors();
    for path in [
        "/v1/tree?threshold=-1",
        "/v1/tree?threshold=99999999999999999999999",
        "/v1/tree?reverse=maybe",
    ] {
        let (status, body) = memprof.get(path);
        assert!((400..500).contains(&status), "{path}: {status} {body}");
        assert!(!body.is_empty(), "{path}");
    }
    // For compatibility with the previous profiler.
    for path in ["/v1/tree?unknown=1", "/v1/tree?%zz=1"] {
        assert_eq!(memprof.get(path).0, 200, "{path}");
    }
    assert_eq!(memprof.get("/v1/nothing").0, 404);
    let refused = [
        &b"GET /v1/tree HTTP/1.1\r\nHost: evil.example\r\n\r\n"[..],
        b"POST /v1/tree HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
    ];
    for bytes in INVALID_REQUESTS.into_iter().chain(refused) {
        let mut stream = TcpStream::connect(memprof.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert!(
            reply.is_empty() || (400..600).contains(&status(&reply)),
            "{bytes:?}: {:?}",
            String::from_utf8_lossy(&reply)
        );
    }
    assert_eq!(memprof.get("/v1/tree").0, 200);
    comes_back(&memprof, before);
    memprof.end();
}

/// A program that maps invalid ELF files as code, and calls none of them.
const MAPS_RUBBISH: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		int fd = open(argv[i], O_RDONLY);
		char *p = mmap(NULL, 65536, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

		if (fd < 0 || p == MAP_FAILED)
			return 1;
		close(fd);
	}
	for (int i = 0; i < 64; i++) {
		volatile char *p = malloc(1 << 20);

		for (int at = 0; at < 1 << 20; at += 4096)
			p[at] = 1;
	}
	puts("ready");
	fflush(stdout);
	return getchar() == EOF ? 0 : 0;
}
"#;

#[test]
fn a_target_with_corrupt_modules() {
    let dir = directory();
    let program = compile(dir.path(), "maps-rubbish", MAPS_RUBBISH);
    let whole = fs::read("/proc/self/exe").unwrap();
    let mut broken = Vec::new();
    let mut add = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        broken.push(path);
    };
    for length in [0, 1, 4, 40, 64, 100, 4096, 70_000] {
        add(&format!("truncated-{length}"), &whole[..length]);
    }
    add("noise", &[0xa5; 70_000]);
    let mut header = whole[..70_000].to_vec();
    // Offsets and counts of the program and section headers that are far out of range.
    header[32..48].fill(0xff);
    header[54..64].fill(0xff);
    add("lying-header", &header);
    for step in 0..8 {
        let mut bytes = whole.clone();
        for at in (step..whole.len()).step_by(997) {
            bytes[at] ^= 0x5a;
        }
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes.truncate(4 << 20);
        add(&format!("flipped-{step}"), &bytes);
    }
    let mut child = Kept::start(
        Command::new(&program)
            .args(&broken)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut ready = [0; 6];
    let mut stdout = child.0.stdout.take().unwrap();
    stdout.read_exact(&mut ready).unwrap();
    let memprof = Memprof::follow(&child.pid());
    let (status, tree) = memprof.get("/v1/tree?threshold=0");
    assert_eq!(status, 200, "{tree}");
    let tree: serde_json::Value = serde_json::from_str(&tree).unwrap();
    assert!(tree["value"].as_u64().unwrap() >= 64 * 1024, "{tree}");
    // Again, with a warm cache; and as a command, of which memprof sees every page.
    assert_eq!(memprof.get("/v1/tree?threshold=0").0, 200);
    memprof.end();
    let ended = run(Command::new(MEMPROF)
        .args([
            "--no-server",
            "-o",
            &text(&dir.path().join("out.json")),
            "--",
        ])
        .arg(&program)
        .args(&broken));
    ended.must(0, &["wrote"]);
}

#[test]
fn few_open_files() {
    let target = Kept::idle();
    let mut command = Command::new(MEMPROF);
    command.args(["--pid", &target.pid(), "--no-server", "--duration", "0.2"]);
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| setrlimit(Resource::RLIMIT_NOFILE, 64, 64).map_err(Into::into));
    }
    run(&mut command).must(1, &["open files: at most 64", "ulimit"]);
}

#[test]
fn closed_stdout_and_stderr() {
    let target = Kept::idle();
    let script = format!(
        "exec \"$0\" --pid {} --no-server --duration 0.2 >&- 2>&-",
        target.pid()
    );
    let ended = run(Command::new("sh").args(["-c", &script, MEMPROF]));
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[test]
fn a_reader_that_went_away() {
    let target = Kept::idle();
    let pid = target.pid();
    let line = format!("\"$0\" --pid {pid} --no-server --duration 0.2");
    for script in [
        format!("{{ {line}; echo $? >&2; }} | true"),
        format!("{{ {line} -o -; echo $? >&2; }} | true"),
        "{ \"$0\" doctor; echo $? >&2; } | true".to_owned(),
    ] {
        let ended = run(Command::new("sh").args(["-c", &script, MEMPROF]));
        assert!(ended.stderr.ends_with("0\n"), "{script}: {ended:?}");
        no_panic(&ended.stderr);
    }
}

/// Waits until the number of open descriptors is back to what it was.
fn comes_back(memprof: &Memprof, before: usize) {
    let start = Instant::now();
    loop {
        let now = memprof.descriptors();
        if now <= before {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{before} descriptors before, {now} after"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A target, a memprof that follows it and has answered a request, and its open descriptors.
fn following() -> (Kept, Memprof, usize) {
    let target = Kept::idle();
    let memprof = Memprof::follow(&target.pid());
    assert_eq!(memprof.get("/v1/tree").0, 200);
    let descriptors = memprof.descriptors();
    (target, memprof, descriptors)
}

#[test]
fn requests_leak_no_descriptors() {
    let (_target, memprof, before) = following();
    for n in 0..1000 {
        let path = ["/v1/tree", "/v1/pid", "/v1/tree?short=true", "/none"][n % 4];
        let wanted = if path == "/none" { 404 } else { 200 };
        assert_eq!(memprof.get(path).0, wanted, "{path}");
    }
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let (status, body) = memprof.get("/v1/tree?threshold=0");
                    // 503: too many requests at once.
                    assert!(status == 200 || status == 503, "{status} {body}");
                }
            });
        }
    });
    comes_back(&memprof, before);
    memprof.end();
}

#[test]
fn readers_that_do_not_read() {
    let (_target, memprof, before) = following();
    let request = memprof.request("/v1/tree?threshold=0");
    let mut slow = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(memprof.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        slow.push(stream);
    }
    // A client that reads gets an answer meanwhile, possibly after retries.
    let start = Instant::now();
    while memprof.get("/v1/pid").0 != 200 {
        assert!(start.elapsed() < PATIENCE, "other clients get no reply");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(slow);
    comes_back(&memprof, before);
    memprof.end();
}

/// One of many clients on a slow link: it reads 2 KiB at a time, with a pause after each. Returns true for a
/// complete reply, false if the server asked it to retry later.
async fn slow_client(number: usize, address: std::net::SocketAddr, request: String) -> bool {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut reply, mut part) = (Vec::new(), [0; 2048]);
    loop {
        match stream.read(&mut part).await {
            Ok(0) => break,
            Ok(n) => reply.extend_from_slice(&part[..n]),
            Err(e) => panic!("client {number}: {e} after {} bytes", reply.len()),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = String::from_utf8(reply).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a header");
    match status(head.as_bytes()) {
        200 => {
            serde_json::from_str::<serde_json::Value>(body).expect("a whole tree");
            true
        }
        503 => false,
        other => panic!("client {number}: status {other}: {body}"),
    }
}

#[test]
fn ten_thousand_requests_on_a_slow_link() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let clients = 10_000.min(hard.max(soft).saturating_sub(1_000) as usize);
    setrlimit(Resource::RLIMIT_NOFILE, hard.max(soft), hard).unwrap();
    let (_target, memprof, before) = following();
    let (address, request) = (memprof.address, memprof.request("/v1/tree?threshold=0"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let answered = runtime.block_on(async {
        // The kernel's accept queue has room for 4,096. When it overflows, the kernel resets connections that clients already use.
        let at_once = Arc::new(Semaphore::new(3_500));
        let all = (0..clients).map(|n| {
            let (at_once, request) = (Arc::clone(&at_once), request.clone());
            async move {
                let _permit = at_once.acquire().await.unwrap();
                slow_client(n, address, request).await
            }
        });
        let mut tasks = all.collect::<tokio::task::JoinSet<_>>();
        let mut answered = 0;
        while let Some(done) = tasks.join_next().await {
            answered += usize::from(done.unwrap());
        }
        answered
    });
    println!("{answered} of {clients} were answered, the others told to come again");
    assert!(answered > clients / 2, "{answered} of {clients}");
    comes_back(&memprof, before);
    memprof.end();
}

#[test]
fn targets_that_come_and_go_leak_no_descriptors() {
    let dir = directory();
    let name = "memprof-churn";
    let program = compile(
        dir.path(),
        name,
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(void) { memset(malloc(1 << 20), 1, 1 << 20); usleep(20000); return 0; }",
    );
    let memprof = Memprof::start(
        &["--comm", name],
        &format!("waiting for a process named {name}"),
    );
    let one = || {
        let status = Command::new(&program).status().unwrap();
        assert!(status.success());
    };
    one();
    let start = Instant::now();
    while !memprof.said().contains("ended") {
        assert!(start.elapsed() < PATIENCE, "{}", memprof.said());
        std::thread::sleep(Duration::from_millis(20));
        one();
    }
    let before = memprof.descriptors();
    for _ in 0..100 {
        one();
    }
    // The last profile may keep a few modules open, which the first did not have.
    comes_back(&memprof, before + 4);
    assert_eq!(memprof.get("/v1/pid").0, 200);
    let followed = memprof.said().matches("following").count();
    assert!(
        followed > 10,
        "{followed} of 101 were followed: {}",
        memprof.said()
    );
    memprof.end();
}

/// A pipe at the end of which nobody is.
#[test]
fn a_pipe_that_nobody_reads() {
    let target = Kept::idle();
    let dir = directory();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let args = ["--pid", &target.pid(), "--no-server", "--duration", "0.2"];
    let ended = run(Command::new(MEMPROF).args(args).arg("-o").arg(&pipe));
    ended.must(1, &[&text(&pipe), "ENXIO", "--output"]);
}

/// A pipe at the end of which somebody is who does not read (any more).
#[test]
fn a_reader_that_does_not_read() {
    let target = Kept::idle();
    for ends_by_itself in [true, false] {
        let (_reader, mut full) = std::io::pipe().unwrap();
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&full, flags).unwrap();
        while full.write(&[b'x'; 4096]).is_ok() {}
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty());
        nix::fcntl::fcntl(&full, flags).unwrap();
        let mut command = Command::new(MEMPROF);
        command.args(["--pid", &target.pid(), "--no-server"]);
        if ends_by_itself {
            command.args(["--duration", "0.2"]);
        }
        let mut child = Kept::start(command.stdout(full).stderr(Stdio::null()));
        std::thread::sleep(Duration::from_secs(3));
        let pid = nix::unistd::Pid::from_raw(child.0.id().cast_signed());
        assert!(child.0.try_wait().unwrap().is_none(), "nothing was written");
        nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
        crate::common::binary::wait(&mut child.0);
    }
}

#[test]
fn a_limit_of_the_size_of_files() {
    let target = Kept::idle();
    let dir = directory();
    let args = [
        "--pid",
        &target.pid(),
        "--no-server",
        "--duration",
        "0.2",
        "-o",
    ];
    let mut command = Command::new(MEMPROF);
    command.args(args).arg(dir.path().join("p.json"));
    // SAFETY: the call is async-signal-safe.
    unsafe {
        command.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_FSIZE, 10, 10)?));
    }
    let ended = run(&mut command);
    ended.must(1, &["p.json", "10 bytes", "RLIMIT_FSIZE", "ulimit -f"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Addresses tell an attacker where code is mapped.
#[test]
fn what_has_addresses_is_for_its_user_alone() {
    let target = Kept::idle();
    let dir = directory();
    let args = ["--pid", &target.pid(), "--no-server", "--duration", "0.2"];
    for (name, mode) in [("p.memprof.json", 0o600), ("p.svg", 0o644)] {
        let path = dir.path().join(name);
        let mut command = Command::new("sh");
        command.args(["-c", "umask 022; exec \"$@\"", "sh", MEMPROF]);
        run(command.args(args).arg("-o").arg(&path)).must(0, &[]);
        let about = fs::metadata(&path).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, mode, "{name}");
    }
}
