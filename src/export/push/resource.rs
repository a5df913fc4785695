//! Attributes of profiles: the process, the container and the machine, named after OpenTelemetry's semantic conventions.

use std::fs;

use memprof_profile::Profile;
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// Name of the attribute for the service.
const SERVICE: &str = "service.name";

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(i64),
}

/// Attributes with distinct names.
pub(super) type Attributes = Vec<(String, Value)>;

/// Parses an attribute from the user (`--push-label`) of the form `NAME=VALUE`.
///
/// # Errors
/// A message that describes the defect.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !first || !name.chars().all(fits) {
        return Err(
            "a name has ASCII letters, digits, `.`, `_` and `-`, and begins with a letter or `_`"
                .into(),
        );
    }
    if name.starts_with("__") {
        return Err("names that begin with `__` belong to the stores".into());
    }
    if value.is_empty() || value.chars().any(char::is_control) {
        return Err("expected a value without control characters".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Collects the attributes of profiles.
pub(super) struct Resources {
    /// Attributes from the user.
    given: Vec<(String, String)>,
    host: Option<String>,
    /// Containers of the processes in the last profile. They cannot be looked up after a process has ended.
    containers: Vec<(Pid, Container)>,
}

impl Resources {
    pub fn new(given: Vec<(String, String)>) -> Resources {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Resources {
            given,
            host: host.map(|host| host.trim().to_owned()),
            containers: Vec::new(),
        }
    }

    /// The attributes of a profile. For several processes, only the common attributes are included.
    pub fn for_profile(&mut self, profile: &Profile) -> Attributes {
        let target = &profile.target;
        let last = std::mem::take(&mut self.containers);
        let container = |pid: Pid| {
            let known = || last.iter().find(|(p, _)| *p == pid).map(|(_, c)| c.clone());
            Some((pid, Container::for_process(pid).or_else(known)?))
        };
        self.containers = target.pids.iter().copied().filter_map(container).collect();
        let mut found = Attributes::new();
        let mut add = |name: &str, value: Option<Value>| {
            found.extend(value.map(|value| (name.to_owned(), value)));
        };
        let text = |text: &str| (!text.is_empty()).then(|| Value::Text(text.to_owned()));
        add(SERVICE, text(&target.comm));
        if let [pid] = target.pids[..] {
            add("process.pid", Some(Value::Number(pid.0.into())));
            // The newest one, because a command's first executable is memprof until it executes its program.
            let own = profile.modules.iter().rfind(|m| m.own_executable);
            add("process.executable.name", own.and_then(|m| text(&m.name)));
        }
        add("host.name", self.host.as_deref().and_then(text));
        let common = |part: fn(&Container) -> &Option<String>| {
            let mut all = self.containers.iter().map(|(_, c)| part(c).as_deref());
            let first = all.next().flatten()?;
            all.all(|other| other == Some(first)).then_some(first)
        };
        add("container.id", common(|c| &c.id).and_then(text));
        add("k8s.pod.uid", common(|c| &c.pod).and_then(text));
        for (name, value) in &self.given {
            found.retain(|(known, _)| known != name);
            found.push((name.clone(), Value::Text(value.clone())));
        }
        found
    }
}

/// Converts attributes to Prometheus labels for stores that accept pprof. In names, `_` replaces everything except letters and
/// digits.
pub(super) fn labels(attributes: &Attributes) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = Vec::new();
    for (name, value) in attributes {
        let fits = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = name.chars().map(fits).collect();
        let value = match value {
            Value::Text(text) => text.clone(),
            Value::Number(number) => number.to_string(),
        };
        // A store rejects duplicate labels. The user's labels come last and win.
        labels.retain(|(known, _)| *known != name);
        labels.push((name, value));
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, kib, profile};

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn a_profile_says_what_it_is_about() {
        let mut profile = profile(&[(&[at(0, 1)], kib(4, 0))], &[]);
        profile.target.comm = "server".into();
        profile.target.pids = vec![Pid(std::process::id())];
        let given = vec![
            ("service.name".into(), "shop".into()),
            ("env".into(), "x".into()),
        ];
        let mut resources = Resources::new(given);
        let found = resources.for_profile(&profile);
        let has = |name: &str, value: Value| found.contains(&(name.to_owned(), value));
        let pid = std::process::id().into();
        assert!(has("process.pid", Value::Number(pid)), "{found:?}");
        assert!(
            has("service.name", text("shop")) && has("env", text("x")),
            "{found:?}"
        );
        assert!(!has("service.name", text("server")), "{found:?}");
        assert!(
            found.iter().any(|(name, _)| name == "host.name"),
            "{found:?}"
        );
        let labels = labels(&found);
        assert!(
            labels.contains(&("service_name".into(), "shop".into())),
            "{labels:?}"
        );
        assert!(
            labels.contains(&("process_pid".into(), pid.to_string())),
            "{labels:?}"
        );
        // With several processes, a process id would be wrong.
        profile.target.pids.push(Pid(1));
        let found = resources.for_profile(&profile);
        assert!(
            found.iter().all(|(name, _)| !name.starts_with("process.")),
            "{found:?}"
        );
    }

    #[test]
    fn several_processes_have_their_common_container() {
        let profile = |pids: &[u32]| {
            let mut profile = profile(&[], &[]);
            profile.target.pids = pids.iter().map(|pid| Pid(*pid)).collect();
            profile
        };
        // No process can have these ids.
        let container = |id: &str| Container {
            id: Some(id.to_owned()),
            pod: Some("p".to_owned()),
            ..Container::default()
        };
        let mut resources = Resources::new(Vec::new());
        let known = vec![
            (Pid(u32::MAX), container("a")),
            (Pid(u32::MAX - 1), container("b")),
        ];
        resources.containers = known.clone();
        let found = resources.for_profile(&profile(&[u32::MAX, u32::MAX - 1]));
        assert!(
            found.contains(&("k8s.pod.uid".into(), text("p"))),
            "{found:?}"
        );
        assert!(
            found.iter().all(|(name, _)| name != "container.id"),
            "{found:?}"
        );
        resources.containers = known;
        let found = resources.for_profile(&profile(&[u32::MAX]));
        assert!(
            found.contains(&("container.id".into(), text("a"))),
            "{found:?}"
        );
    }

    #[test]
    fn labels_are_checked() {
        assert_eq!(
            parse_label("deployment.environment.name=a=b"),
            Ok(("deployment.environment.name".into(), "a=b".into()))
        );
        for bad in ["x", "=x", "a=", "1a=x", "a b=x", "a=\n", "__name__=x"] {
            parse_label(bad).expect_err(bad);
        }
        let twice = vec![("a.b".to_owned(), text("1")), ("a_b".to_owned(), text("2"))];
        assert_eq!(labels(&twice), [("a_b".to_owned(), "2".to_owned())]);
    }
}
