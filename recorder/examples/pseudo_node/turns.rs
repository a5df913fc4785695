//! Threads that take turns with one value.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct State<T> {
    value: T,
    turn: usize,
    done: bool,
}

/// A value with which threads take turns, in their order.
pub struct Turns<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    threads: usize,
}

impl<T> Turns<T> {
    pub fn new(value: T, threads: usize) -> Self {
        let state = State {
            value,
            turn: 0,
            done: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            threads,
        }
    }

    /// Takes the turns of thread `me`, until a step of any thread returns false.
    pub fn take(&self, me: usize, step: impl Fn(&mut T) -> bool) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            while state.turn != me && !state.done {
                state = self.wait(state);
            }
            if state.done {
                return;
            }
            state.done = !step(&mut state.value);
            state.turn = (me + 1) % self.threads;
            self.changed.notify_all();
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    pub fn into_inner(self) -> T {
        let state = self.state.into_inner();
        state.unwrap_or_else(PoisonError::into_inner).value
    }
}
