//! Demangles symbol names.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions};

use memprof_profile::symbol::Language;

/// Maximum length of a name, in bytes; a longer one is cut and ends in `…`.
pub const MAX_NAME: usize = 4096;
/// Recursion limit: enough for any real template, and safe for the thread's stack.
const RECURSION: u32 = 96;

/// Returns the demangled name and the language, as far as the mangling shows it.
///
/// Names in Rust's legacy mangling keep the hash, which distinguishes instances of one function, because the contract of
/// `/v1` has it ([`Symbols::shown`](memprof_profile::symbol::Symbols::shown) cuts it); v0 names lose their crate hashes. A name that cannot be demangled stays unchanged.
pub fn demangle(raw: &[u8]) -> (String, Language) {
    let name = String::from_utf8_lossy(raw);
    let name = strip_version(&name);
    if let Some(rust) = rust(name) {
        return (rust, Language::Rust);
    }
    let shown = cpp(name).unwrap_or_else(|| clipped(name));
    (shown, Language::Other)
}

/// `memcpy@@GLIBC_2.14` → `memcpy`.
fn strip_version(name: &str) -> &str {
    match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Clip::default();
    let result = if name.starts_with("_R") {
        write!(out, "{demangled:#}")
    } else {
        // `_ZN3foo3barE` is also valid C++; only the hash shows that it is Rust.
        has_legacy_hash(name).then(|| write!(out, "{demangled}"))?
    };
    out.finish(result)
}

fn has_legacy_hash(name: &str) -> bool {
    name.match_indices("17h").any(|(at, _)| {
        let rest = &name.as_bytes()[at + 3..];
        rest.len() > 16 && rest[..16].iter().all(u8::is_ascii_hexdigit) && rest[16] == b'E'
    })
}

fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    let parse = ParseOptions::default().recursion_limit(RECURSION);
    let show = DemangleOptions::default().recursion_limit(RECURSION);
    let symbol = cpp_demangle::BorrowedSymbol::with_tail_and_options(name.as_bytes(), &parse).ok();
    let (symbol, _) = symbol.filter(|(_, tail)| tail.is_empty())?;
    let mut out = Clip::default();
    let result = symbol.structured_demangle(&mut out, &show);
    out.finish(result)
}

fn clipped(name: &str) -> String {
    let mut out = Clip::default();
    // An error only means that the name was cut.
    let _ = out.write_str(name);
    out.text
}

/// Text of at most [`MAX_NAME`] bytes. Writing more is an error, which stops the demangler: a short
/// mangled name can expand to gigabytes of text.
#[derive(Default)]
struct Clip {
    text: String,
    full: bool,
}

impl Clip {
    fn finish(self, result: fmt::Result) -> Option<String> {
        ((result.is_ok() || self.full) && !self.text.is_empty()).then_some(self.text)
    }
}

impl Write for Clip {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            if self.full {
                return Err(fmt::Error);
            }
            if self.text.len() + c.len_utf8() + '…'.len_utf8() > MAX_NAME {
                self.full = true;
                self.text.push('…');
                return Err(fmt::Error);
            }
            // Names are written to terminals and in line-based formats.
            self.text.push(if c.is_control() { '\u{fffd}' } else { c });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(raw: &str) -> String {
        demangle(raw.as_bytes()).0
    }

    #[test]
    fn rust_legacy_keeps_the_hash() {
        let raw = b"_ZN4demo3foo17h0123456789abcdefE";
        assert_eq!(
            demangle(raw),
            ("demo::foo::h0123456789abcdef".into(), Language::Rust)
        );
        assert_eq!(
            name("_ZN4demo3foo17h0123456789abcdefE.llvm.12345678"),
            "demo::foo::h0123456789abcdef"
        );
    }

    #[test]
    fn rust_v0_loses_crate_hashes() {
        let (name, language) = demangle(b"_RNvNtCs1234_7mycrate3foo3bar");
        assert_eq!(
            (name.as_str(), language),
            ("mycrate::foo::bar", Language::Rust)
        );
    }

    #[test]
    fn cpp_is_not_rust() {
        assert_eq!(
            demangle(b"_ZN3foo3barEv"),
            ("foo::bar()".into(), Language::Other)
        );
        assert_eq!(
            demangle(b"_ZN3foo3barE"),
            ("foo::bar".into(), Language::Other)
        );
    }

    #[test]
    fn versions_go_and_plain_names_stay() {
        assert_eq!(name("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(name("realpath@GLIBC_2.2.5"), "realpath");
        assert_eq!(name("main"), "main");
        assert_eq!(name("@odd"), "@odd");
        assert_eq!(name("_Znonsense"), "_Znonsense");
    }

    #[test]
    fn hostile_names_are_bounded() {
        // A quarter of the symbol thread's stack.
        let small = std::thread::Builder::new().stack_size(crate::symbolize::STACK / 4);
        small.spawn(try_hostile_names).unwrap().join().unwrap();
    }

    fn try_hostile_names() {
        assert_eq!(name("a\nb\x1b[31m"), "a\u{fffd}b\u{fffd}[31m");
        assert!(demangle(b"\xff\xfe\x80").0.contains('\u{fffd}'));
        let long = name(&"x".repeat(1 << 20));
        assert!(long.len() <= MAX_NAME && long.ends_with('…'));
        for (head, again, tail) in [
            ("_Z1f", "P", "i"),
            ("_Z1f", "PF", "iE"),
            ("_Z1f", "M1aA2_", "i"),
            ("_Z1fI", "1aI", "E"),
            ("_ZN", "1aIN", "E"),
            ("_Z1fIX", "ngcvi", "E"),
            ("_Z1fDT", "pp", "E"),
            ("_Z", "Z1fvE", "1g"),
            ("_RMC0", "R", "e"),
            ("_RMC0", "NvC0", "1a"),
            ("_RINvC0", "INvC01a", "E"),
            ("_RNvMC0", "TFE", "u"),
        ] {
            for depth in [50, 500, 100_000] {
                let nested = format!("{head}{}{tail}", again.repeat(depth));
                assert!(name(&nested).len() <= MAX_NAME, "{head} {again}");
            }
        }
        let mut pairs = String::from("_Z1fSt4pairIiiE");
        for i in 0..40u32 {
            let s = std::char::from_digit(i % 36, 36)
                .unwrap()
                .to_ascii_uppercase();
            pairs.push_str(&format!("St4pairIS{s}_S{s}_E"));
        }
        assert!(name(&pairs).len() <= MAX_NAME);
    }
}
