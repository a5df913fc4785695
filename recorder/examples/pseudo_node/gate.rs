//! Commands from standard input, for which connections wait.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::http;

#[derive(Default)]
struct State {
    going: bool,
    /// Messages that commands have permitted on each connection.
    permitted: u64,
    /// Connections that commands have asked for.
    connects: u64,
    closing: bool,
}

/// The work that connections may do now.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Commands may come.
    controlled: bool,
}

impl Gate {
    /// A gate that obeys standard input if `controlled`, and at first lets nothing pass if `paused`.
    pub fn new(controlled: bool, paused: bool) -> Arc<Self> {
        let gate = Arc::new(Self {
            state: Mutex::new(State {
                going: !paused,
                ..State::default()
            }),
            changed: Condvar::new(),
            controlled,
        });
        if controlled {
            let gate = gate.clone();
            std::thread::spawn(move || gate.obey());
        }
        gate
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&self) {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let (command, value) = line.split_once(' ').unwrap_or((&line, ""));
            let mut state = self.state();
            match (command, value.parse::<u64>()) {
                ("go", _) => state.going = true,
                ("send", Ok(count)) => state.permitted += count,
                ("connect", _) => state.connects += 1,
                ("close", _) => state.closing = true,
                ("quit", _) => std::process::exit(0),
                ("http", _) => {
                    drop(state);
                    match http::get(value) {
                        Ok(bytes) => println!("http {bytes}"),
                        Err(e) => println!("error {e}"),
                    }
                }
                _ => println!("error no such command: {line}"),
            }
            self.changed.notify_all();
        }
        let mut state = self.state();
        (state.going, state.closing) = (true, true);
        self.changed.notify_all();
    }

    /// Wakes connections that wait, because something else has changed.
    pub fn wake(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    /// Waits for the command to begin.
    pub fn wait_for_start(&self) {
        let mut state = self.state();
        if !state.going {
            println!("paused");
        }
        while !state.going {
            state = self.wait(state);
        }
    }

    /// Waits for the next command to connect; returns false if everything is to be closed. `done` is the number of those before.
    pub fn wait_for_connect(&self, done: u64) -> bool {
        let mut state = self.state();
        while state.connects <= done && !state.closing {
            state = self.wait(state);
        }
        !state.closing
    }

    /// True if everything is to be closed.
    pub fn is_closing(&self) -> bool {
        self.state().closing
    }

    /// Messages that commands have permitted so far.
    pub fn permitted(&self) -> u64 {
        self.state().permitted
    }

    /// Returns the number of messages that a connection may send, or waits until there are some; 0 if it is to be closed. `idle` is
    /// called before waiting.
    pub fn next(&self, left: impl Fn(u64) -> u64, idle: impl FnOnce(), ended: &AtomicBool) -> u64 {
        let mut idle = Some(idle);
        let mut state = self.state();
        loop {
            let max = left(state.permitted);
            let end = state.closing || ended.load(Ordering::Relaxed);
            if max > 0 && !state.closing {
                return max;
            }
            if !self.controlled || end {
                return 0;
            }
            if let Some(idle) = idle.take() {
                idle();
            }
            state = self.wait(state);
        }
    }
}
