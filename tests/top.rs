//! `memprof top` on a terminal of its own: what it shows, and that the terminal is given back.
//!
//! Needs root and `cc`.

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};

use common::memprof::{BINARY, run_to_error};
use common::process::{LIMIT, signal, wait_until};
use common::workload::{Workload, program};

/// A memprof on a terminal that the test holds the other end of.
struct Top {
    child: Child,
    keys: File,
    /// The terminal's own end, to ask it for its modes.
    terminal: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Top {
    fn start(args: &[&str]) -> Top {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = Command::new("setsid")
            .args(["--ctty", BINARY, "top"])
            .args(args)
            .env("TERM", "xterm-256color")
            .env("NO_COLOR", "1")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(pty.master);
        let size = |n| NonZero::new(n).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(24), size(80), 1000)));
        let (mut from, to) = (keys.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                to.lock().unwrap().process(&piece[..n]);
            }
        });
        Top {
            child,
            keys,
            terminal: pty.slave,
            screen,
        }
    }

    /// What is on the screen now, and whether that is the one of its own.
    fn seen(&self) -> (String, bool) {
        let screen = self.screen.lock().unwrap();
        let screen = screen.screen();
        (screen.contents(), screen.alternate_screen())
    }

    /// Waits until this is on its screen.
    #[track_caller]
    fn shows(&mut self, what: &str) {
        let end = Instant::now() + LIMIT;
        while !self.seen().0.contains(what) {
            let ended = self.child.try_wait().unwrap();
            let late = Instant::now() > end;
            let (text, _) = self.seen();
            assert!(
                ended.is_none() && !late,
                "no {what:?} ({ended:?}) in\n{text}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.seen().1, "not on a screen of its own");
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether keys come one by one and are not echoed.
    fn is_raw(&self) -> bool {
        let flags = tcgetattr(self.terminal.as_fd()).unwrap().local_flags;
        !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO)
    }

    /// Waits for its end; the terminal must be as it was. What stands on it then.
    #[track_caller]
    fn ends(mut self, last: &str) -> (ExitStatus, String) {
        let mut status = None;
        wait_until(|| {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(!self.is_raw(), "{:?}", self.seen());
        // What it wrote last may still be on its way here.
        let end = Instant::now() + LIMIT;
        while !self.everything().contains(last) || self.seen().1 {
            assert!(Instant::now() < end, "no {last:?} in {:?}", self.seen());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!self.screen.lock().unwrap().screen().hide_cursor());
        let text = self.everything();
        assert!(
            !text.contains("panicked") && !text.contains("functions by self"),
            "{text}"
        );
        (status.unwrap(), text)
    }

    /// What stands on the terminal, with what was scrolled away.
    fn everything(&self) -> String {
        let mut screen = self.screen.lock().unwrap();
        let screen = screen.screen_mut();
        let mut text = String::new();
        // From the oldest line that is kept on: by screens, which overlap.
        screen.set_scrollback(usize::MAX);
        let mut back = screen.scrollback();
        loop {
            screen.set_scrollback(back);
            text += &screen.contents();
            text.push('\n');
            if back == 0 {
                return text;
            }
            back = back.saturating_sub(12);
        }
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn scenarios() -> (Workload, String) {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    (workload, pid)
}

#[test]
fn functions_are_seen_and_q_gives_the_terminal_back() {
    let (mut workload, pid) = scenarios();
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--pid", &pid]);
    top.shows("functions by self");
    top.shows("= kernel");
    assert!(top.is_raw());
    workload.lines.tell("mmap 8388608");
    top.shows("cmd_mmap (scenarios)");
    // The tree, all of it, and back.
    top.press("t");
    top.shows("tree of callees");
    top.press("*");
    top.shows("- run_command (scenarios)");
    top.press("/cmd_mm\r");
    top.shows("\"cmd_mm\"");
    top.press("?");
    top.shows("set a mark");
    top.press("xq");
    let (status, after) = top.ends("Losses:");
    assert!(status.success(), "{status}");
    // What is said at the end, and the summary, stand on the terminal as it was.
    assert!(
        after.contains(&format!("following scenarios (pid {pid})")),
        "{after}"
    );
    assert!(after.contains("cmd_mmap (scenarios)"), "{after}");
}

#[test]
fn a_signal_and_ctrl_c_give_it_back() {
    let (_workload, pid) = scenarios();
    for by_signal in [true, false] {
        let mut top = Top::start(&["--no-server", "--pid", &pid]);
        top.shows("functions by self");
        // The command's own keys come from its terminal.
        match by_signal {
            true => signal(memprof::event::Pid(top.child.id()), libc::SIGTERM),
            false => top.press("\x03"),
        }
        let (status, _) = top.ends("Losses:");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn the_targets_end_gives_it_back() {
    let (workload, pid) = scenarios();
    let mut top = Top::start(&["--no-server", "--pid", &pid]);
    top.shows("functions by self");
    workload.end();
    let (status, _) = top.ends(", ended)");
    assert!(status.success(), "{status}");
}

#[test]
fn with_a_server_the_last_report_stays() {
    let (workload, pid) = scenarios();
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--pid", &pid]);
    top.shows("functions by self");
    workload.end();
    top.shows("ENDED");
    top.press("q");
    let (status, after) = top.ends("Losses:");
    assert!(status.success(), "{status}");
    assert!(
        after.contains("its last profile stays; q ends memprof"),
        "{after}"
    );
}

/// Its output would run over the screen, and its input would take the keys.
#[test]
fn a_command_that_is_started_is_kept_from_the_terminal() {
    let script = "echo out; echo err >&2; read x; test -z \"$x\" && exit 7";
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--", "sh", "-c", script]);
    top.shows("the command ended with status 7");
    top.press("q");
    let (status, after) = top.ends("Losses:");
    assert_eq!(status.code(), Some(7), "{after}");
    assert!(
        !after.contains("out\r\n") && !after.contains("err\r\n"),
        "{after:?}"
    );
}

#[test]
fn quitting_ends_a_command_too() {
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--", "sleep", "600"]);
    top.shows("sleep (pid ");
    top.press("q");
    let (status, after) = top.ends("Losses:");
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{after}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let said = run_to_error(&["top", "--pid", &std::process::id().to_string()]);
    assert!(
        said.contains("stdout is none") && said.contains("--output"),
        "{said}"
    );
}
