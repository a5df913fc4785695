//! memprof with exactly what the files of docs/deploy give it: the unit of systemd, and the pods of Kubernetes.
//!
//! Neither runs here (`tests/systemd.sh` has a systemd, and `tests/container.sh` a pod). What they ask for is taken from the files, and made by the tools that it can be made by: capabilities and
//! `no_new_privs` by `setpriv`, what of the file system can be seen and written by mounts, filters by libseccomp.

use std::collections::BTreeMap;

use super::*;
use crate::common::skip::skip;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/deploy")
        .join(name)
}

/// `CAP_BPF` or `BPF` as `setpriv` calls it.
fn short(cap: &str) -> String {
    cap.trim_start_matches("CAP_").to_lowercase()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// What a deployment gives memprof.
struct Given {
    user: u32,
    caps: Vec<String>,
    /// Names and groups of system calls that are refused.
    refused: Vec<String>,
    /// Directories that are empty.
    hidden: &'static str,
    /// The directory that can be written, if there is one.
    written: Option<String>,
    args: Vec<String>,
}

impl Given {
    /// memprof as this user, in a mount namespace in which the file system is read-only; /mnt has memprof and the token.
    fn memprof(&self, more: &[&str]) -> Command {
        // One mount may cover another.
        let script = format!(
            "for dir in {written}; do
                 mount -t tmpfs tmpfs ${{dir%/*}}
                 mkdir $dir && mount -t tmpfs -o mode=755 tmpfs $dir
             done
             while read -r _ dir _; do
                 case \" {written} \" in *\" $dir \"*) continue ;; esac
                 case $dir in /proc* | /sys* | /dev*) continue ;; esac
                 mount -o remount,bind,ro $dir 2>/dev/null || :
             done </proc/self/mounts
             ! touch /etc/memprof-test /usr/memprof-test 2>/dev/null || exit 99
             mount -t tmpfs -o mode=755 tmpfs /mnt
             cp {memprof} /mnt/memprof && cp {filter} /mnt/filter.py
             (umask 077 && echo {TOKEN} >/mnt/token)
             mount -o remount,ro /mnt
             for dir in {hidden}; do mount -t tmpfs -o mode=755 tmpfs $dir; done
             exec \"$@\"",
            memprof = place().memprof.display(),
            filter = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/suite/privileges/filter.py"
            ),
            hidden = self.hidden,
            written = self.written.as_deref().unwrap_or_default(),
        );
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            &script,
            "sh",
        ]);
        let set = self
            .caps
            .iter()
            .fold("-all".to_owned(), |set, cap| set + ",+" + cap);
        let user = self.user.to_string();
        command.args([
            "setpriv",
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
        ]);
        // Other users than root have capabilities after `execve` only if they are ambient.
        if self.user != 0 {
            command.args(["--inh-caps", &set, "--ambient-caps", &set]);
        }
        command.args(["--bounding-set", &set, "--no-new-privs"]);
        if !self.refused.is_empty() {
            command
                .args(["/usr/bin/python3", "/mnt/filter.py"])
                .args(&self.refused)
                .arg("--");
        }
        command.arg("/mnt/memprof").args(more);
        command
    }

    /// memprof with the arguments of the file, at a free port.
    fn serving(&self, target: &[&str]) -> Memprof {
        let mut args: Vec<&str> = target.to_vec();
        for arg in &self.args {
            args.push(match arg.as_str() {
                "--all" => continue,
                "127.0.0.1:17832" => "127.0.0.1:0",
                "--listen=0.0.0.0:17832" => "--listen=127.0.0.1:0",
                "/etc/memprof/token" => "/mnt/token",
                "--token-file=/etc/memprof/token" => "--token-file=/mnt/token",
                other => other,
            });
        }
        args.extend(["--stacks", "all"]);
        let mut command = self.memprof(&args);
        Memprof::spawn_as(command.stdin(Stdio::null()).stdout(Stdio::piped()))
    }
}

/// Sections and settings of a unit; `Environment` and `ExecStart` are not split further.
fn unit() -> BTreeMap<String, String> {
    let text = fs::read_to_string(deploy("memprof.service")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let settings = lines.filter_map(|line| line.split_once('='));
    settings
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn of_unit() -> Given {
    let unit = unit();
    let get = |key: &str| unit.get(key).unwrap_or_else(|| panic!("no {key}")).as_str();
    for (key, wanted) in [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("SystemCallErrorNumber", "EPERM"),
        ("SystemCallArchitectures", "native"),
        ("Environment", "\"MEMPROF_OPTIONS=--all\""),
    ] {
        assert_eq!(get(key), wanted, "{key}");
    }
    assert_eq!(get("AmbientCapabilities"), get("CapabilityBoundingSet"));
    let start = get("ExecStart").replace("$MEMPROF_OPTIONS", "--all");
    let args = start.strip_prefix("/usr/local/bin/memprof ").unwrap();
    Given {
        user: NOBODY,
        caps: words(get("AmbientCapabilities"))
            .iter()
            .map(|c| short(c))
            .collect(),
        refused: words(get("SystemCallFilter").strip_prefix('~').unwrap()),
        hidden: "/home /root /tmp /var/tmp",
        written: None,
        args: words(args),
    }
}

/// The pod in a file of a DaemonSet, as JSON.
fn pod(name: &str) -> Option<Value> {
    let program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let mut command = Command::new("/usr/bin/python3");
    let out = command.args(["-c", program]).arg(deploy(name)).output();
    let out = out.ok().filter(|out| out.status.success());
    if out.is_none() {
        skip("python3-yaml is not installed");
    }
    let daemon_set: Value = serde_json::from_slice(&out?.stdout).unwrap();
    Some(daemon_set["spec"]["template"]["spec"].clone())
}

fn strings(value: &Value) -> Vec<String> {
    let all = value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
        .iter();
    all.map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn of_pod() -> Option<Given> {
    let pod = pod("daemonset.yaml")?;
    assert_eq!(pod["hostPID"], true, "{pod}");
    let container = &pod["containers"][0];
    let context = &container["securityContext"];
    for (key, wanted) in [
        ("runAsUser", Value::from(0)),
        ("privileged", false.into()),
        ("allowPrivilegeEscalation", false.into()),
        ("readOnlyRootFilesystem", true.into()),
    ] {
        assert_eq!(context[key], wanted, "{key}");
    }
    assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"]);
    // No more than their owner may read: memprof takes no other.
    assert_eq!(pod["volumes"][0]["secret"]["defaultMode"], 0o400);
    let command = strings(&container["command"]);
    assert_eq!(command[0], "memprof");
    Some(Given {
        user: 0,
        caps: strings(&context["capabilities"]["add"])
            .iter()
            .map(|c| short(c))
            .collect(),
        refused: Vec::new(),
        hidden: "/home /root /tmp /var/tmp",
        written: None,
        args: command[1..].to_vec(),
    })
}

/// Asks with the token.
#[track_caller]
fn ask(m: &Memprof, method: &str, path: &str, body: &str) -> Value {
    let (address, length) = (m.address(), body.len());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let reply = crate::common::Reply::parse(&crate::common::exchange(address, request.as_bytes()));
    assert!(
        reply.status < 300,
        "{path}: {} {}",
        reply.status,
        reply.text()
    );
    reply.json()
}

/// Everything that a service does: other users' processes, in home directories and replaced, their stacks, names, heaps.
fn works(given: &Given) {
    let doctor = output(given.memprof(&[]).arg("doctor")).1;
    assert!(doctor.contains("memprof works here"), "{doctor}");
    for refused in ["own privileges          cannot", "missing"] {
        assert!(!doctor.contains(refused), "{doctor}");
    }
    // A program that neither the unit nor the pod can see by its path.
    let home = tempfile::tempdir_in("/root").unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = home.path().join(unique_name("hidden"));
    assert!(
        Command::new("cp")
            .arg(&place().workload)
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    for user in [ANOTHER, 0] {
        let mut start = Command::new(&place().workload);
        match user {
            // Its directory is root's.
            0 => start = Command::new(&path),
            user => drop(start.uid(user).gid(user)),
        }
        let mut workload = Workload::start_as(&mut start);
        workload.lines.tell("mmap 4096");
        let pid = workload.pid();
        let m = given.serving(&["--max-freeze", "5000", "--pid", &pid.to_string()]);
        m.said("following ");
        assert_eq!(m.get("/v2/summary").status, 401);
        workload.lines.tell("mmap 67108864");
        let mark = ask(&m, "POST", "/v2/marks", "{\"freeze\": true}");
        assert_eq!(mark["exact"], true, "{mark}");
        let kernel = figures::rollup(pid).unwrap().anonymous;
        let summary = ask(&m, "GET", "/v2/summary", "");
        assert_eq!(summary["total"]["anon"], kernel, "{summary}");
        assert_eq!(summary["agreement"]["verdict"], "equal", "{summary}");
        let tree = ask(&m, "GET", "/v2/tree?threshold=0", "").to_string();
        assert!(tree.contains("cmd_mmap"), "{tree}");
        // It is so large that it is forked, not stopped while it is copied.
        let heap = ask(&m, "POST", "/v2/heap", "{\"max_stop\": 10000}");
        let heap = ask(
            &m,
            "GET",
            &format!("/v2/heap/{}", heap["id"].as_str().unwrap()),
            "",
        );
        assert_eq!(heap["heap"]["taken"]["approach"], "fork", "{heap}");
        ask(&m, "GET", "/v2/maps", "");
        let rights = rights_of_threads(&m);
        assert!(
            rights.values().all(|r| r.no_new_privs && r.filtered),
            "{rights:x?}"
        );
        m.interrupt();
    }
    let workload = workload_of(ANOTHER);
    let m = given.serving(&["--all"]);
    m.said("following ");
    // On a busy machine, a report may come before all events are taken in, and says that it is incomplete; the next ones are not.
    wait_until(|| {
        let rows = ask(&m, "GET", "/v2/processes", "");
        let is_there = |row: &Value| row["pid"] == workload.pid().0;
        rows["report"]["agreement"]["verdict"] != "incomplete"
            && rows["rows"].as_array().unwrap().iter().any(is_there)
    });
    m.interrupt();
}

#[test]
fn the_unit_gives_what_memprof_needs() {
    if !Path::new("/usr/bin/python3").exists()
        || Command::new("systemd-analyze")
            .arg("--version")
            .output()
            .is_err()
    {
        return skip("python3 or systemd-analyze is not installed");
    }
    let given = of_unit();
    assert_eq!(given.caps, OTHERS, "each of these is needed, and no other");
    works(&given);
}

#[test]
fn the_pod_gives_what_memprof_needs() {
    let Some(given) = of_pod() else {
        return;
    };
    assert_eq!(given.caps, OTHERS, "each of these is needed, and no other");
    works(&given);
}

#[test]
fn the_pod_records() {
    let (Some(mut given), Some(patch)) = (of_pod(), pod("daemonset-record.yaml")) else {
        return;
    };
    let container = &patch["containers"][0];
    let command = strings(&container["command"]);
    let added = command[1..].strip_prefix(given.args.as_slice());
    assert_eq!(added.map(<[String]>::len), Some(2), "{command:?}");
    given.args = command[1..].to_vec();
    let mount = &container["volumeMounts"][0];
    assert_eq!(mount["name"], patch["volumes"][0]["name"]);
    given.written = Some(mount["mountPath"].as_str().unwrap().to_owned());
    let m = given.serving(&["--all"]);
    m.said("following ");
    let said = m.interrupt();
    let recorded = " reports to /var/lib/memprof/node.memprof.db";
    assert!(
        said.contains(recorded) && !said.contains(" 0 reports"),
        "{said}"
    );
}

#[test]
fn systemd_accepts_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memprof.service");
    let text = fs::read_to_string(deploy("memprof.service")).unwrap();
    // It must exist.
    fs::write(&file, text.replace("/usr/local/bin/memprof", BINARY)).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let Ok(out) = verify.args(["verify", "--man=no"]).arg(&file).output() else {
        return skip("systemd-analyze is not installed");
    };
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.is_empty(), "{said}");
    // It would say what is wrong.
    fs::write(&file, text.replace("NoNewPrivileges", "NoNewPrivilege")).unwrap();
    let out = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("NoNewPrivilege"),
        "{out:?}"
    );
}
