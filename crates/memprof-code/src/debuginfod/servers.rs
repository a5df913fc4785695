//! Chooses the servers to query: from the option, the environment, or this machine's configuration.

use std::fs;
use std::path::Path;

/// The environment variable that lists servers.
pub const URLS: &str = "DEBUGINFOD_URLS";
/// Directory where distributions configure servers, in files named `*.urls`.
const CONFIGURED: &str = "/etc/debuginfod";
/// The elfutils server that federates the servers of the distributions.
const FEDERATION: &str = "https://debuginfod.elfutils.org";
const MAX_SERVERS: usize = 16;
/// Maximum size of a configuration file, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// The user's choice of servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DebuginfodMode {
    /// No choice: the servers in `DEBUGINFOD_URLS`, if it is set.
    #[default]
    Environment,
    /// Enabled without a list: the servers in `DEBUGINFOD_URLS`, in this machine's configuration, or the federating
    /// server.
    Usual,
    /// These servers.
    These(Vec<String>),
    /// No server.
    Off,
}

impl DebuginfodMode {
    /// Parses the value of `--debuginfod`: `off`, or a list of URLs.
    ///
    /// # Errors
    /// The list is empty or contains something that is not an HTTP URL.
    pub fn parse(text: &str) -> Result<DebuginfodMode, String> {
        if text == "off" {
            return Ok(DebuginfodMode::Off);
        }
        let (urls, others) = urls(text);
        match others.first() {
            None if !urls.is_empty() => Ok(DebuginfodMode::These(urls)),
            _ => Err("expected `off`, or URLs that begin with http:// or https://".into()),
        }
    }
}

/// The servers to query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    /// URLs without a trailing slash, in the order in which they are queried.
    pub urls: Vec<String>,
    /// Where the list comes from, for messages.
    pub from: String,
}

impl Servers {
    /// The servers for the user's choice; `None` if none is to be queried.
    pub fn chosen(wish: &DebuginfodMode) -> Option<Servers> {
        let variable = std::env::var(URLS).ok();
        Servers::choose(wish, variable.as_deref(), Path::new(CONFIGURED))
    }

    fn choose(wish: &DebuginfodMode, variable: Option<&str>, configured: &Path) -> Option<Servers> {
        let list = |urls: Vec<String>, from: &str| {
            let from = from.to_owned();
            (!urls.is_empty()).then_some(Servers { urls, from })
        };
        let environment = || list(urls(variable.unwrap_or_default()).0, URLS);
        match wish {
            DebuginfodMode::Off => None,
            DebuginfodMode::These(urls) => list(urls.clone(), "--debuginfod"),
            DebuginfodMode::Environment => environment(),
            DebuginfodMode::Usual => environment()
                .or_else(|| list(of_files(configured), &configured.display().to_string()))
                .or_else(|| list(vec![FEDERATION.to_owned()], "--debuginfod")),
        }
    }

    /// The message printed at the start of a session.
    pub fn line(&self) -> String {
        let urls = self.urls.join(" ");
        format!(
            "debuginfod: files without symbols are looked up by build id at {urls} ({}); --debuginfod=off asks nobody",
            self.from
        )
    }
}

/// Splits a list into its HTTP URLs and all other words.
fn urls(text: &str) -> (Vec<String>, Vec<String>) {
    let words = text.split_whitespace();
    let (urls, others): (Vec<&str>, Vec<&str>) = words.partition(|word| {
        let rest = word
            .strip_prefix("https://")
            .or_else(|| word.strip_prefix("http://"));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '['))
            && word.chars().all(|c| c.is_ascii_graphic())
    });
    let urls = urls.iter().map(|url| url.trim_end_matches('/').to_owned());
    let others = others.into_iter().map(str::to_owned).collect();
    (urls.take(MAX_SERVERS).collect(), others)
}

fn of_files(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "urls"));
    files.sort();
    let mut all = Vec::new();
    for file in files.iter().take(MAX_SERVERS) {
        let small = fs::metadata(file).is_ok_and(|m| m.is_file() && m.len() <= MAX_FILE);
        if let Ok(text) = fs::read_to_string(file)
            && small
        {
            all.extend(urls(&text).0);
        }
    }
    all.dedup();
    all.truncate(MAX_SERVERS);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_from_the_option_the_variable_or_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let choose = |wish: &DebuginfodMode, variable, dir: &Path| {
            let servers = Servers::choose(wish, variable, dir);
            servers.map(|servers| servers.urls.join(" "))
        };
        let set = Some("https://a.example/ ima:enforcing http://b.example:8002/x/ file:///srv");
        assert_eq!(choose(&DebuginfodMode::Environment, None, dir.path()), None);
        assert_eq!(
            choose(&DebuginfodMode::Environment, Some(" "), dir.path()),
            None
        );
        let both = Some("https://a.example http://b.example:8002/x".to_owned());
        assert_eq!(choose(&DebuginfodMode::Environment, set, &none), both);
        assert_eq!(choose(&DebuginfodMode::Usual, set, &none), both);
        assert_eq!(choose(&DebuginfodMode::Off, set, &none), None);
        let federation = Some(FEDERATION.to_owned());
        assert_eq!(choose(&DebuginfodMode::Usual, Some(""), &none), federation);
        fs::write(dir.path().join("d.urls"), "https://d.example\n").unwrap();
        fs::write(dir.path().join("other"), "https://no.example\n").unwrap();
        let configured = Some("https://d.example".to_owned());
        assert_eq!(choose(&DebuginfodMode::Usual, None, dir.path()), configured);
        let these = DebuginfodMode::parse("http://127.0.0.1:1 https://x.example/").unwrap();
        let said = Some("http://127.0.0.1:1 https://x.example".to_owned());
        assert_eq!(choose(&these, set, dir.path()), said);
    }

    #[test]
    fn what_is_no_server_is_refused() {
        assert_eq!(DebuginfodMode::parse("off"), Ok(DebuginfodMode::Off));
        for text in ["", "on", "ftp://x", "http://", "https:///x", "http://a b"] {
            DebuginfodMode::parse(text).expect_err(text);
        }
    }
}
