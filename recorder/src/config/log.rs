//! The logs of a node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::{ConfigError, DEFAULT_KEEP, DEFAULT_MODE, Log, Text, check, file, none_if_0, values};
use crate::logs::Source;

/// The directory of Octez's daily logs in its data directory.
pub fn daily_logs(data_dir: &Path) -> Source {
    Source::Daily(data_dir.join("daily-logs"))
}

impl Text<'_> {
    pub(super) fn log(
        &self,
        raw: Option<Spanned<file::Log>>,
        old: Option<Spanned<u16>>,
    ) -> Result<Option<Log>, ConfigError> {
        let span = raw.as_ref().map(Spanned::span);
        let mut raw = raw.map(Spanned::into_inner).unwrap_or_default();
        let port = self.either(raw.port.take(), "log.port", old, "syslog_port")?;
        let port = port.and_then(|port| none_if_0(port.into_inner()));
        let sources = self.log_sources(&mut raw, port)?;
        if sources.is_empty() {
            // Only a port of 0 says that there are no logs.
            let other =
                raw.disable_search.is_some() || raw.keep.is_some() || raw.store_limit.is_some();
            let remedy = "add one of `port`, `socket`, `file`, `data_dir` and `unit`";
            return match span.filter(|_| other) {
                Some(span) => Err(self.error(Some(span), "no source of logs", remedy)),
                None => Ok(None),
            };
        }
        let keep = raw.keep.unwrap_or_default();
        let lines = self.either(
            keep.lines,
            "log.keep.lines",
            raw.store_limit,
            "log.store_limit",
        )?;
        Ok(Some(Log {
            sources,
            search: !raw.disable_search.unwrap_or(false),
            keep: self.keep(lines, keep.bytes, keep.age, DEFAULT_KEEP.1)?,
        }))
    }

    fn log_sources(
        &self,
        raw: &mut file::Log,
        port: Option<u16>,
    ) -> Result<Vec<Source>, ConfigError> {
        let listen = match raw.listen.take() {
            Some(text) => self.parsed(text.span(), "log.listen", check::address(text.get_ref()))?,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let mode = match raw.mode.take() {
            Some(text) => self.parsed(text.span(), "log.mode", values::mode(text.get_ref()))?,
            None => DEFAULT_MODE,
        };
        let path = |text: Spanned<String>| PathBuf::from(text.into_inner());
        let socket = raw.socket.take().map(path);
        let unit = raw.unit.take().map(Spanned::into_inner);
        let all = [
            port.map(|port| Source::Udp(SocketAddr::new(listen, port))),
            socket.map(|path| Source::Socket { path, mode }),
            raw.file.take().map(|file| Source::File(path(file))),
            raw.data_dir
                .take()
                .map(|directory| daily_logs(&path(directory))),
            unit.map(|unit| Source::Journal { unit }),
        ];
        Ok(all.into_iter().flatten().collect())
    }
}
