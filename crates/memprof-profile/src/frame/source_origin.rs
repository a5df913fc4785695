//! Whose code a file has, by its path: the program's, an interpreter's, or that of libraries.

use std::path::Path;

/// Directories with the standard libraries and packages of interpreters. A name that ends in `*` is a prefix.
const LIBRARIES: [&str; 12] = [
    "site-packages",
    "dist-packages",
    "python2*",
    "python3*",
    "pypy*",
    "node_modules",
    "gems",
    "perl5",
    "perl",
    "php",
    "jvm",
    "ruby",
];
/// A directory of this name has a standard library only below `lib`, `lib64` or `share`.
const PARENTS: [&str; 3] = ["lib", "lib64", "share"];
/// Packages have directories of these names anywhere.
const ANYWHERE: [&str; 4] = ["site-packages", "dist-packages", "node_modules", "gems"];

/// Parts of the paths of source files of compiled libraries, as debug information names them.
const COMPILED_LIBRARIES: [&str; 8] = [
    "/rustc/",
    "/library/std/src/",
    "/library/core/src/",
    "/library/alloc/src/",
    "/.cargo/registry/src/",
    "/.cargo/git/checkouts/",
    "/usr/include/",
    "/usr/lib/gcc",
];
/// Beginnings of the names of functions of standard libraries.
const LIBRARY_NAMES: [&str; 10] = [
    "std::",
    "core::",
    "alloc::",
    "hashbrown::",
    "__gnu_cxx::",
    "operator new",
    "__rust_",
    // Go's run time, and what runs before and around `main`.
    "runtime.",
    "_start",
    "__libc_",
];

/// Executables of interpreters and virtual machines, without version and flavour.
const RUNTIMES: [&str; 18] = [
    "python", "pypy", "ruby", "irb", "node", "nodejs", "java", "perl", "php", "php-fpm", "lua",
    "luajit", "deno", "bun", "Rscript", "beam.smp", "dotnet", "mono",
];

/// Whether a source file belongs to the program that an interpreter runs.
pub(super) fn is_own(path: &Path) -> bool {
    // Functions without a source file, and modules in the interpreter: `<frozen importlib._bootstrap>`, `node:fs`.
    let text = path.to_string_lossy();
    let is_internal = |text: &str| text.is_empty() || text.starts_with(['<', '[']);
    let name = text.rsplit('/').next().unwrap_or_default();
    if is_internal(&text) || is_internal(name) || text.starts_with("node:") {
        return false;
    }
    let parts: Vec<&str> = text.split('/').collect();
    let is_library = |(at, part): (usize, &&str)| {
        let below = at.checked_sub(1).and_then(|at| parts.get(at));
        let is_there = ANYWHERE.contains(part) || below.is_some_and(|dir| PARENTS.contains(dir));
        is_there && LIBRARIES.iter().any(|name| is_named(part, name))
    };
    let dirs = parts.len().saturating_sub(1);
    !parts.iter().take(dirs).enumerate().any(is_library)
}

fn is_named(part: &str, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(prefix) => part.starts_with(prefix),
        None => part == name,
    }
}

/// Whether code in a program's executable comes from a library: from headers, or from packages that the compiler linked in.
/// `file` is the source file in debug information.
pub(crate) fn is_linked_library(function: &str, file: Option<&str>) -> bool {
    match file {
        Some(file) => COMPILED_LIBRARIES.iter().any(|dir| file.contains(dir)),
        // `<alloc::vec::Vec<T> as core::clone::Clone>::clone`
        None => {
            let name = function.trim_start_matches('<');
            LIBRARY_NAMES.iter().any(|start| name.starts_with(start))
        }
    }
}

/// Whether an executable is an interpreter: `/usr/bin/python3.11`, `bin/ruby`. Programs elsewhere may have such a name, too.
pub(super) fn is_runtime(path: &Path) -> bool {
    let dir = path.parent().and_then(Path::file_name);
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(name), true) = (name, dir.is_some_and(|dir| dir == "bin")) else {
        return false;
    };
    let is = |runtime: &&str| {
        let rest = name.strip_prefix(runtime);
        rest.is_some_and(|rest| {
            let flavour = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            matches!(flavour, "" | "t" | "d" | "m" | "dm" | "-dbg")
        })
    };
    RUNTIMES.iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_s_source_files_are_told_apart() {
        for own in [
            "/srv/shop/shop.py",
            "shop.py",
            "/home/ruby/app.rb",
            "/srv/python3/job.py",
            "/app/lib/server.js",
            "/home/me/php/index.php",
        ] {
            assert!(is_own(Path::new(own)), "{own}");
        }
        for library in [
            "/usr/lib/python3.11/json/decoder.py",
            "/usr/local/lib/python3.12/site-packages/django/db/models.py",
            "/srv/venv/lib/python3.11/site-packages/flask/app.py",
            "/usr/lib/ruby/3.1.0/set.rb",
            "/var/lib/gems/3.1.0/gems/rack-2.2/lib/rack.rb",
            "/srv/app/node_modules/express/lib/router.js",
            "node:internal/modules/cjs/loader",
            "<frozen importlib._bootstrap>",
            "/srv/<string>",
            "[JIT]",
            "",
        ] {
            assert!(!is_own(Path::new(library)), "{library}");
        }
    }

    #[test]
    fn libraries_in_an_executable_are_told_apart() {
        let rustc = "/rustc/abc/library/alloc/src/raw_vec/mod.rs";
        for (function, file) in [
            ("alloc::raw_vec::finish_grow", None),
            ("<alloc::vec::Vec<T> as core::clone::Clone>::clone", None),
            ("std::vector<int>::_M_realloc_insert", None),
            ("grow_one<u8>", Some(rustc)),
            (
                "spawn",
                Some("/root/.cargo/registry/src/index-1/tokio-1.4/src/task.rs"),
            ),
            ("push_back", Some("/usr/include/c++/12/bits/stl_vector.h")),
        ] {
            assert!(is_linked_library(function, file), "{function}");
        }
        for (function, file) in [
            ("stdlib_init", None),
            ("node::run", None),
            // The line decides.
            ("std::hash<Key>::operator()", Some("/src/key.h")),
            ("load", Some("frag.cpp")),
        ] {
            assert!(!is_linked_library(function, file), "{function}");
        }
    }

    #[test]
    fn interpreters_are_known_by_path() {
        assert!(!is_runtime(Path::new("/opt/node")));
        for name in [
            "python",
            "python3.11",
            "python3.13t",
            "ruby3.1",
            "node",
            "java",
            "php-fpm8.2",
            "python3-dbg",
        ] {
            assert!(is_runtime(&Path::new("/usr/bin").join(name)), "{name}");
        }
        for name in [
            "light-node",
            "nodes",
            "python-helper",
            "rubyist",
            "javac",
            "memprof",
            "",
        ] {
            assert!(!is_runtime(&Path::new("/usr/bin").join(name)), "{name}");
        }
    }
}
