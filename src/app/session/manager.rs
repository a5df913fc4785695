//! Notifies the service manager that started memprof: systemd's protocol for units of `Type=notify`.
//!
//! Each notification is one datagram to the socket that `NOTIFY_SOCKET` names. `systemctl start` then waits until
//! memprof listens and follows its target, and fails if memprof fails. If memprof profiles a command, the socket is
//! left to the command.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::oneshot;
use tokio::time::{self, MissedTickBehavior};

use crate::collect::CollectorHandle;
use crate::collect::collector::{Command, Progress};
use memprof_sys::messages;
use memprof_sys::process::Selector;
use memprof_sys::text::printable;

/// Maximum time for a message to wait for space in the manager's queue; then it is lost.
const LONGEST: Duration = Duration::from_secs(1);

/// The connection to the service manager, if there is one.
#[derive(Clone, Default)]
pub(super) struct Manager {
    socket: Option<Arc<UnixDatagram>>,
    /// The watchdog interval within which the manager expects a keep-alive.
    watchdog: Option<Duration>,
}

impl Manager {
    /// Connects to the socket that the environment names. On failure, prints the error and continues without
    /// notifications.
    pub(super) fn of_environment(target: &Selector) -> Manager {
        if matches!(target, Selector::Command(_)) {
            return Manager::default();
        }
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Manager::default();
        };
        let connected = connect(&name).with_context(|| {
            format!(
                "cannot tell the service manager that memprof is ready, at NOTIFY_SOCKET={}",
                name.display()
            )
        });
        let socket = told(connected).map(Arc::new);
        let watchdog = match socket {
            Some(_) => told(watchdog(
                env::var_os("WATCHDOG_USEC"),
                env::var_os("WATCHDOG_PID"),
                std::process::id(),
            )),
            None => None,
        };
        Manager {
            socket,
            watchdog: watchdog.flatten(),
        }
    }

    /// Reports that memprof listens and follows. Sends watchdog keep-alives from now on, as long as the serving thread
    /// runs and the collector answers.
    pub(super) fn ready(&self, collecting: &CollectorHandle) {
        self.send("READY=1");
        if let (Some(_), Some(interval)) = (&self.socket, self.watchdog) {
            tokio::spawn(keep_alive(self.clone(), interval / 2, collecting.clone()));
        }
    }

    /// Sets the status line of `systemctl status`.
    pub(super) fn shows(&self, target: &Selector, progress: &Progress) {
        if self.socket.is_some() {
            self.send(&format!("STATUS={}", status(target, progress)));
        }
    }

    /// Reports that memprof ends: it makes a last report, which may take a while.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=making the last report");
    }

    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(e) = socket.send(message.as_bytes()) {
            messages::print(&format!("cannot tell the service manager {message:?}: {e}"));
        }
    }
}

/// Prints an error, which is not fatal.
fn told<T>(result: Result<T>) -> Option<T> {
    result
        .inspect_err(|e| messages::print(&format!("{e:#}")))
        .ok()
}

/// A socket connected to this address: a path, or `@` and the name of an abstract socket.
fn connect(name: &OsString) -> Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => bail!("it is neither a path nor @ with the name of an abstract socket"),
    };
    let connected = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(LONGEST))?;
        io::Result::Ok(socket)
    });
    Ok(connected?)
}

/// The manager's watchdog interval, if it watches this process.
fn watchdog(
    micros: Option<OsString>,
    whose: Option<OsString>,
    own: u32,
) -> Result<Option<Duration>> {
    let Some(micros) = micros else {
        return Ok(None);
    };
    if whose.is_some_and(|pid| pid != *own.to_string()) {
        return Ok(None);
    }
    let number = micros.to_str().and_then(|text| text.parse().ok());
    match number {
        Some(n) if n > 0 => Ok(Some(Duration::from_micros(n))),
        _ => bail!(
            "no watchdog is told that memprof works: WATCHDOG_USEC={} is no number of microseconds",
            micros.display()
        ),
    }
}

async fn keep_alive(manager: Manager, interval: Duration, collecting: CollectorHandle) {
    let mut ticks = time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (reply, answered) = oneshot::channel();
        // A full queue also means that the collector is stuck.
        if collecting.send(Command::Status(reply)).is_ok() && answered.await.is_ok() {
            manager.send("WATCHDOG=1");
        }
    }
}

fn status(target: &Selector, progress: &Progress) -> String {
    match (target, progress) {
        (_, Progress::Waiting) => match target.awaited() {
            Some(what) => format!("waiting for {what}"),
            None => "following nothing yet".to_owned(),
        },
        (Selector::All, Progress::Following { .. }) => "following every process".to_owned(),
        (Selector::Cgroup(group), Progress::Following { .. }) => format!("following {group}"),
        (_, Progress::Following { pid, comm }) => {
            format!("following {} (pid {pid})", printable(comm))
        }
        (_, Progress::Ended { pid, .. }) => format!("pid {pid} ended; its last profile stays"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_sys::ids::Pid;

    #[test]
    fn a_watchdog_of_another_process_is_not_memprofs() {
        let read = |micros: Option<&str>, pid: Option<&str>| {
            watchdog(micros.map(Into::into), pid.map(Into::into), 7).map_err(|e| e.to_string())
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!(read(None, Some("7")), Ok(None));
        assert_eq!(read(Some("1000000"), None), Ok(second));
        assert_eq!(read(Some("1000000"), Some("7")), Ok(second));
        assert_eq!(read(Some("1000000"), Some("8")), Ok(None));
        for wrong in ["", "0", "-1", "1s"] {
            let said = read(Some(wrong), None).unwrap_err();
            assert!(said.contains(&format!("WATCHDOG_USEC={wrong} ")), "{said}");
        }
    }

    #[test]
    fn a_status_is_one_line() {
        let comm = "two\nREADY=1".to_owned();
        let following = Progress::Following { pid: Pid(3), comm };
        let pid = Selector::Pid(Pid(3));
        assert!(!status(&pid, &following).contains('\n'));
        assert_eq!(
            status(&Selector::All, &following),
            "following every process"
        );
        let comm = Selector::Comm("redis".to_owned());
        assert_eq!(
            status(&comm, &Progress::Waiting),
            "waiting for a process named redis"
        );
    }
}
