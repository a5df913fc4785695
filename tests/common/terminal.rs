//! `memprof top` on a pseudoterminal that the test controls.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};

use super::memprof::BINARY;
use super::process::{LIMIT, wait_until};

/// A pseudoterminal with these columns and lines. No other process inherits it, which would keep it from going away.
pub fn open(columns: u16, lines: u16) -> OpenptyResult {
    let size = Winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).unwrap();
    for end in [&pty.master, &pty.slave] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    }
    pty
}

/// The columns and lines of a terminal.
fn terminal_size(terminal: &OwnedFd) -> (u16, u16) {
    let mut size = Winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request writes a `winsize`, which the pointer refers to.
    let done = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    assert_eq!(done, 0);
    (size.ws_col, size.ws_row)
}

/// A memprof on a pseudoterminal that the test controls.
pub struct Top {
    pub child: Child,
    keys: File,
    /// The terminal side, to query its modes.
    terminal: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Top {
    /// Starts `memprof top`.
    pub fn start(args: &[&str]) -> Top {
        Top::run(&[&["top"], args].concat())
    }

    /// Starts memprof with these arguments.
    pub fn run(args: &[&str]) -> Top {
        Top::run_on(open(80, 24), args)
    }

    /// Starts memprof on this terminal, of 80 columns and 24 lines if it does not say how many it has.
    pub fn run_on(pty: OpenptyResult, args: &[&str]) -> Top {
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let (columns, lines) = match terminal_size(&pty.slave) {
            (0, _) | (_, 0) => (80, 24),
            size => size,
        };
        let child = Command::new("setsid")
            .args(["--ctty", BINARY])
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
        let screen = vt100::Parser::new(size(lines), size(columns), 1000);
        let screen = Arc::new(Mutex::new(screen));
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

    /// The current screen content, and whether it is the alternate screen.
    pub fn seen(&self) -> (String, bool) {
        let screen = self.screen.lock().unwrap();
        let screen = screen.screen();
        (screen.contents(), screen.alternate_screen())
    }

    /// Waits until the screen shows this.
    #[track_caller]
    pub fn shows(&mut self, what: &str) {
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
        assert!(self.seen().1, "not on the alternate screen");
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether the terminal is in raw mode: no line buffering, no echo.
    pub fn is_raw(&self) -> bool {
        let flags = tcgetattr(self.terminal.as_fd()).unwrap().local_flags;
        !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO)
    }

    /// Waits for its end and checks that the terminal is restored. Returns the exit status and the terminal's content.
    #[track_caller]
    pub fn ends(mut self, last: &str) -> (ExitStatus, String) {
        let mut status = None;
        wait_until(|| {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(!self.is_raw(), "{:?}", self.seen());
        // Its last output may not have arrived yet.
        let end = Instant::now() + LIMIT;
        while !self.everything().contains(last) || self.seen().1 {
            assert!(Instant::now() < end, "no {last:?} in {:?}", self.seen());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!self.screen.lock().unwrap().screen().hide_cursor());
        let text = self.everything();
        assert!(
            !["panicked", "functions by self", "─ Grows ─"]
                .iter()
                .any(|word| text.contains(word)),
            "{text}"
        );
        (status.unwrap(), text)
    }

    /// The terminal's content including the scrollback.
    fn everything(&self) -> String {
        let mut screen = self.screen.lock().unwrap();
        let screen = screen.screen_mut();
        let mut text = String::new();
        // Starts at the oldest line in the scrollback and reads overlapping screens.
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
