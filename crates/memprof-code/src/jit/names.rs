//! The names that runtimes give to code made at run time, taken apart where their convention is known.

use memprof_profile::JIT;
use memprof_profile::symbol::Language;

/// From this column on, in its first line, a source file is taken for one that a tool put on few lines: the column then
/// is part of a function's name, because many functions share the line.
const MINIFIED: u32 = 256;

/// What the names of `python -X perf` begin with.
pub(super) const PYTHON: &str = "py::";

/// A function made at run time, by the name that the runtime gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeName<'a> {
    /// Its language.
    pub language: Language,
    /// Its source file, or [`JIT`] if none is known.
    pub path: &'a str,
    /// Whether the file is the program's own, not the runtime's or a library's.
    pub own: bool,
    /// The function's name.
    pub name: String,
    /// Its first line, counted from 1; 0 if it is not known.
    pub first_line: u32,
}

impl<'a> RuntimeName<'a> {
    /// Takes a name apart; a name of an unknown convention stays as it is.
    pub fn parse(text: &'a str) -> RuntimeName<'a> {
        let known = python(text).or_else(|| javascript(text));
        known.unwrap_or_else(|| RuntimeName {
            language: Language::Other,
            path: JIT,
            own: false,
            name: text.to_owned(),
            first_line: 0,
        })
    }
}

/// `py::QUALIFIED NAME:FILE`, of `python -X perf`.
fn python(text: &str) -> Option<RuntimeName<'_>> {
    let (name, path) = text.strip_prefix(PYTHON)?.split_once(':')?;
    if name.is_empty() || path.is_empty() {
        return None;
    }
    let library = ["<frozen ", "/site-packages/", "/dist-packages/"];
    let standard = path.contains("/lib/python");
    Some(RuntimeName {
        language: Language::Python,
        path,
        own: !standard && !library.iter().any(|part| path.contains(part)),
        name: name.to_owned(),
        first_line: 0,
    })
}

/// `JS:*NAME FILE:LINE:COLUMN` and its older forms, of V8. The sign before the name is the compiler's; it is left out,
/// because a function is the same one however it was compiled. Newer V8s put an `o` before it.
fn javascript(text: &str) -> Option<RuntimeName<'_>> {
    const KINDS: [&str; 5] = ["JS:", "LazyCompile:", "Function:", "Eval:", "Script:"];
    let rest = KINDS.iter().find_map(|kind| text.strip_prefix(kind))?;
    // (No name has one of these signs behind its first letter.)
    let replaced = rest
        .strip_prefix('o')
        .and_then(|r| r.strip_prefix(['*', '+', '^']));
    let rest = replaced
        .or_else(|| rest.strip_prefix(['~', '*', '^', '+', '\'']))
        .unwrap_or(rest);
    let (before, column) = rest.rsplit_once(':')?;
    let (before, line) = before.rsplit_once(':')?;
    let (line, column) = (line.parse::<u32>().ok()?, column.parse::<u32>().ok()?);
    // Names and paths may have spaces; a path begins in one of few ways.
    let begins = [" /", " file:", " node:", " wasm:", " http"];
    let space = begins.iter().filter_map(|s| before.find(s)).min();
    let (name, path) = match space.or_else(|| before.rfind(' ')) {
        Some(space) => (&before[..space], &before[space + 1..]),
        None => (before, ""),
    };
    let name = match name {
        "" if line == 1 && column == 1 => "(module)".to_owned(),
        "" => format!("(anonymous {line}:{column})"),
        _ if line == 1 && column > MINIFIED => format!("{name} ({line}:{column})"),
        _ => name.to_owned(),
    };
    let path = path.strip_prefix("file://").unwrap_or(path);
    Some(RuntimeName {
        language: Language::JavaScript,
        own: !path.starts_with("node:") && !path.contains("/node_modules/"),
        // Functions made by `eval` and `new Function`.
        path: if path.is_empty() { "[eval]" } else { path },
        name,
        first_line: line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (Language, &str, bool, String, u32) {
        let n = RuntimeName::parse(text);
        (n.language, n.path, n.own, n.name, n.first_line)
    }

    #[test]
    fn names_of_node() {
        let js = Language::JavaScript;
        for (text, path, own, name, line) in [
            ("JS:~f file:///a/b.mjs:3:20", "/a/b.mjs", true, "f", 3),
            (
                "JS:*get size /a b/c d.js:12:7",
                "/a b/c d.js",
                true,
                "get size",
                12,
            ),
            (
                "JS:+f /a/node_modules/x/i.js:2:1",
                "/a/node_modules/x/i.js",
                false,
                "f",
                2,
            ),
            ("JS:o*run /a.js:7:3", "/a.js", true, "run", 7),
            ("JS:over /a.js:7:3", "/a.js", true, "over", 7),
            ("LazyCompile:^f node:fs:7:3", "node:fs", false, "f", 7),
            ("JS:~ /a.js:1:1", "/a.js", true, "(module)", 1),
            ("JS:~ /a.js:9:4", "/a.js", true, "(anonymous 9:4)", 9),
            ("JS:~anonymous :1:20", "[eval]", true, "anonymous", 1),
            (
                "JS:*e /dist/bundle.js:1:20345",
                "/dist/bundle.js",
                true,
                "e (1:20345)",
                1,
            ),
        ] {
            assert_eq!(
                parts(text),
                (js, path, own, name.to_owned(), line),
                "{text}"
            );
        }
    }

    #[test]
    fn names_of_python() {
        let of = |text| parts(text);
        assert_eq!(
            of("py::A.f:/srv/app.py"),
            (Language::Python, "/srv/app.py", true, "A.f".into(), 0)
        );
        assert!(!of("py::_load:<frozen importlib._bootstrap>").2);
        assert!(!of("py::f:/usr/lib/python3.12/json/__init__.py").2);
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for text in [
            "Builtin:ArrayPush",
            "BytecodeHandler:LdaZero",
            "RegExp:^a:b c:1",
            "JS:~f",
            "JS:~f:1:99999999999",
            "JS:",
            "py::",
            "py::f",
            "Lcom/example/Main;::run",
            "int32 [app] A::B(int32)[Tier0]",
            "",
        ] {
            assert_eq!(
                parts(text),
                (Language::Other, JIT, false, text.to_owned(), 0)
            );
        }
    }
}
