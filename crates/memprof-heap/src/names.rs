//! Demangles many symbols at once. Demanglers recurse, so they run in a thread with a large enough stack.

use memprof_code::symbolize::{STACK, demangle};

/// The input for one name.
#[derive(Debug)]
pub(super) struct Raw {
    /// Candidate symbols. The first one that `choose` accepts gives the name.
    pub symbols: Vec<Vec<u8>>,
    /// Selects the name from a demangled symbol, or rejects the symbol.
    pub choose: fn(&str) -> Option<&str>,
    /// The name if no symbol is accepted.
    pub otherwise: String,
}

impl Raw {
    /// A name that needs no demangling.
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

/// Makes the names. They are empty if no thread can be started.
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

/// A Rust function's name without the hash suffix of the legacy mangling.
pub(super) fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}
