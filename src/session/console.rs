//! Messages to the user, on stderr. While the terminal belongs to the live view they go there, and to
//! stderr when it is given back.

use std::io::{self, Write};
use std::mem;
use std::sync::{Mutex, PoisonError};

use crate::screen::News;

/// Messages that are kept while the view has the terminal; further ones are counted.
const MOST: usize = 200;

/// Messages that wait for the terminal.
struct Held {
    to: News,
    messages: Vec<String>,
    further: usize,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// A message to the user.
pub(super) fn print(message: &str) {
    match &mut *HELD.lock().unwrap_or_else(PoisonError::into_inner) {
        None => write(message),
        Some(held) => {
            held.to.message(message);
            if held.messages.len() < MOST {
                held.messages.push(message.to_owned());
            } else {
                held.further += 1;
            }
        }
    }
}

fn write(message: &str) {
    // Nobody reads it: nothing to be done.
    let _ = writeln!(io::stderr(), "memprof: {message}");
}

/// From now on messages go to the view.
pub(super) fn hold(to: News) {
    let held = Held {
        to,
        messages: Vec::new(),
        further: 0,
    };
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
}

/// The terminal is free again: says what was held.
pub(super) fn release() {
    let held = mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
    let Some(held) = held else {
        return;
    };
    held.messages.iter().for_each(|message| write(message));
    if held.further > 0 {
        write(&format!("and {} more messages", held.further));
    }
}
