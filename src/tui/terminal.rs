//! The real terminal, which is restored on every exit: on quitting, on errors, on a panic of any thread.

use std::io::{self, IsTerminal, Stdout, stdout};
use std::os::fd::AsFd;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};

use super::render::render;
use super::state::{Input, UiState};

/// Whether memprof has taken over the terminal.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Columns and lines of a terminal that does not report its size, such as a serial line.
const SIZE: (u16, u16) = (80, 24);
/// Maximum delay until a change of the window size is noticed.
const SLICE: Duration = Duration::from_millis(50);

/// Fails unless standard output is a terminal.
///
/// # Errors
/// Standard output is not a terminal; the message names the alternative.
pub fn require() -> Result<()> {
    if !stdout().is_terminal() {
        bail!(
            "`memprof top` needs a terminal, but stdout is not one: to write a profile to a file or pipe, \
             omit `top` and use --output FILE"
        );
    }
    Ok(())
}

/// The terminal while memprof uses it.
pub(super) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<Stdout>>,
}

impl Terminal {
    /// Takes over the terminal: raw mode, alternate screen.
    pub(super) fn enter() -> Result<Terminal> {
        give_back_on_panic();
        enable_raw_mode().context("cannot switch the terminal to raw mode")?;
        TAKEN.store(true, Ordering::SeqCst);
        // ratatui's `clear` is not used: it queries the cursor position, which some terminals do not answer.
        let entered =
            execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All)).and_then(|()| {
                let viewport = match size() {
                    Ok((1.., 1..)) => Viewport::Fullscreen,
                    _ => Viewport::Fixed(Rect::new(0, 0, SIZE.0, SIZE.1)),
                };
                let backend = CrosstermBackend::new(stdout());
                ratatui::Terminal::with_options(backend, TerminalOptions { viewport })
            });
        match entered {
            Ok(inner) => Ok(Terminal { inner }),
            Err(e) => {
                give_back();
                Err(e).context("cannot draw on the terminal")
            }
        }
    }

    /// The terminal's columns and lines.
    pub(super) fn size(&self) -> (u16, u16) {
        known_size()
    }

    /// Waits for user input for at most `wait`.
    ///
    /// # Errors
    /// The terminal cannot be read, or is gone.
    pub(super) fn input(&self, wait: Duration) -> Result<Option<Input>> {
        let failed = "cannot read keys from the terminal";
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            wait_for_keys(left.min(SLICE)).context(failed)?;
            if event::poll(Duration::ZERO).context(failed)? {
                break;
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
        Ok(match event::read().context(failed)? {
            Event::Key(key) => Some(Input::Key(key)),
            Event::Resize(columns, lines) => Some(Input::Resize(columns, lines)),
            _ => None,
        })
    }

    pub(super) fn draw(&mut self, state: &UiState) -> Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            bail!("another thread of memprof panicked");
        }
        self.inner
            .draw(|frame| render(state, frame))
            .context("cannot draw on the terminal")?;
        Ok(())
    }
}

/// Columns and lines of the terminal, or [`SIZE`] if unknown.
fn known_size() -> (u16, u16) {
    match size() {
        Ok(known @ (1.., 1..)) => known,
        _ => SIZE,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Waits until keys can be read, for at most `wait`. crossterm's own wait never ends if the terminal disappears.
fn wait_for_keys(wait: Duration) -> Result<()> {
    let terminal = stdout();
    let mut fds = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
    match poll(&mut fds, timeout) {
        // A signal arrived, perhaps because the window was resized.
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e.into()),
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    let seen = fds[0].revents().unwrap_or(PollFlags::empty());
    ensure!(!seen.intersects(gone), "the terminal is gone");
    Ok(())
}

/// Restores the terminal, unless that has already happened. Errors are ignored because nothing can be done about them.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = io::Write::flush(&mut stdout());
    }
}

/// Restores the terminal on a panic, so that the user can read its message.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}
