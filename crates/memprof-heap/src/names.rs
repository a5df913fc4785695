//! Symbols to names, many at once: demanglers recurse, so that they have a thread with a stack that is large enough.

use memprof_code::symbolize::{STACK, demangle};

/// What a name is made from.
#[derive(Debug)]
pub(super) struct Raw {
    /// Symbols; the first one that `choose` likes gives the name.
    pub symbols: Vec<Vec<u8>>,
    /// What of a demangled symbol is the name.
    pub choose: fn(&str) -> Option<&str>,
    /// The name otherwise.
    pub otherwise: String,
}

impl Raw {
    /// A name that is known.
    pub(super) fn known(name: String) -> Raw {
        Raw {
            symbols: Vec::new(),
            choose: |_| None,
            otherwise: name,
        }
    }

    fn name(self, demangle: impl Fn(&[u8]) -> String) -> String {
        let mut names = self.symbols.iter().filter_map(|symbol| {
            let shown = demangle(symbol);
            Some((self.choose)(&shown)?.to_owned())
        });
        names.next().unwrap_or(self.otherwise)
    }
}

/// The names; empty ones if no thread can be started.
pub(super) fn all(raw: Vec<Raw>) -> Vec<String> {
    if raw.iter().all(|raw| raw.symbols.is_empty()) {
        return raw.into_iter().map(|raw| raw.otherwise).collect();
    }
    let count = raw.len();
    let demangled = move || {
        let names = raw
            .into_iter()
            .map(|raw| raw.name(|symbol| demangle(symbol).0));
        names.collect()
    };
    let thread = std::thread::Builder::new().stack_size(STACK);
    let thread = thread.spawn(demangled).ok();
    let names = thread.and_then(|thread| thread.join().ok());
    names.unwrap_or_else(|| vec![String::new(); count])
}

/// A Rust function's name without the hash that the older mangling adds.
pub(super) fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}
