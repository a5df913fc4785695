//! JIT runtimes, and how to make each of them write the names of its code.

use std::collections::HashMap;

use memprof_profile::symbol::{Symbol, Symbols};
use memprof_profile::{Frame, FrameKind, Kind, Module, ModuleId, Origin, Profile, Stack};

/// Maximum number of runtimes to mention.
const NAMED: usize = 2;

/// A JIT runtime.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Runtime {
    name: &'static str,
    /// Names of its program or library; a trailing `*` matches any suffix.
    files: &'static [&'static str],
    /// The function of its interpreter. It is the only native frame of interpreted functions, which the remedy also
    /// names.
    interpreter: Option<&'static str>,
    /// How to make it write names.
    remedy: &'static str,
}

/// Each remedy was tested and brought the names; for .NET only with version 3.1.
const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "node",
        files: &["node", "nodejs", "libnode.so*"],
        interpreter: Some("Builtins_InterpreterEntryTrampoline"),
        remedy: "start it with NODE_OPTIONS='--perf-basic-prof --interpreted-frames-native-stack'",
    },
    Runtime {
        name: "Deno",
        files: &["deno"],
        interpreter: Some("Builtins_InterpreterEntryTrampoline"),
        remedy: "start it with DENO_V8_FLAGS=--perf-basic-prof,--interpreted-frames-native-stack",
    },
    Runtime {
        name: "Java",
        files: &["libjvm.so"],
        interpreter: None,
        remedy: "start it with -XX:+PreserveFramePointer, and run `jcmd PID Compiler.perfmap` before the report",
    },
    Runtime {
        name: ".NET",
        files: &["libcoreclr.so"],
        interpreter: None,
        remedy: "start it with DOTNET_PerfMapEnabled=1 (before .NET 6 COMPlus_PerfMapEnabled=1)",
    },
    Runtime {
        name: "Mono",
        files: &["mono", "mono-sgen", "libmonosgen-2.0.so*"],
        interpreter: None,
        remedy: "start it with MONO_ENV_OPTIONS=--jitmap",
    },
    Runtime {
        name: "Erlang",
        files: &["beam.smp"],
        interpreter: None,
        remedy: "start it with ERL_FLAGS='+JPperf true'",
    },
    Runtime {
        name: "PHP",
        files: &["php", "php7*", "php8*", "php-fpm*", "libphp*"],
        interpreter: None,
        remedy: "set opcache.jit_debug=16",
    },
    Runtime {
        name: "wasmtime",
        files: &["wasmtime", "libwasmtime.so*", "_libwasmtime.so*"],
        interpreter: None,
        remedy: "start it with --profile=perfmap, or set ProfilingStrategy::PerfMap",
    },
];

impl Runtime {
    /// The runtime that a module belongs to.
    fn for_module(module: &Module) -> Option<&'static Runtime> {
        if !module.path.is_absolute() || module.functions.is_some() {
            return None;
        }
        let is = |pattern: &&str| match pattern.strip_suffix('*') {
            Some(start) => module.name.starts_with(start),
            None => module.name == *pattern,
        };
        RUNTIMES.iter().find(|runtime| runtime.files.iter().any(is))
    }
}

/// A runtime, and the bytes of the stacks with unnamed code of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Silent {
    runtime: &'static Runtime,
    pub bytes: u64,
}

/// The runtimes that write no names, ordered by bytes, descending. A stack with named JIT code does not count, because
/// its runtime writes names.
pub(super) fn silent(profile: &Profile, symbols: &Symbols) -> Vec<Silent> {
    let of_module: Vec<Option<&'static Runtime>> = profile
        .modules
        .iter()
        .map(|m| Runtime::for_module(m))
        .collect();
    let mut present = of_module.iter().flatten().map(|runtime| runtime.name);
    // A stack that is truncated at such code does not contain its runtime. It is attributed to the only runtime in the
    // profile, if there is just one.
    let only = present.next().filter(|first| present.all(|n| n == *first));
    let only = only.and_then(|name| RUNTIMES.iter().find(|runtime| runtime.name == name));
    if of_module.iter().all(Option::is_none) {
        return Vec::new();
    }
    let module = |frame: &Frame| match frame.kind() {
        FrameKind::Code(id, _) => Some((id, profile.modules.get(usize::from(id.0))?)),
        FrameKind::Unmapped(_) => None,
    };
    let runtime_of = |id: ModuleId| of_module.get(usize::from(id.0)).copied().flatten();
    let of_stack = |stack: &Stack| {
        let mut nameless = false;
        let mut runtime = None;
        for frame in &stack.frames {
            let Some((id, module)) = module(frame) else {
                continue;
            };
            match &module.functions {
                Some(functions) if functions.origin == Origin::Runtime => return None,
                None if module.is_jit() => nameless = true,
                _ => {}
            }
            let Some(found) = runtime_of(id) else {
                continue;
            };
            nameless |= found.interpreter.is_some_and(|interpreter| {
                matches!(symbols.get(*frame), Some(Symbol::Known(f)) if f.name == interpreter)
            });
            // The first runtime frame below the code is its caller.
            if nameless {
                runtime = runtime.or(Some(found));
            }
        }
        runtime.or(only).filter(|_| nameless)
    };
    let mut bytes: HashMap<&str, Silent> = HashMap::new();
    for sample in &profile.samples {
        if let Some(runtime) = of_stack(&sample.stack) {
            let silent = bytes
                .entry(runtime.name)
                .or_insert(Silent { runtime, bytes: 0 });
            silent.bytes += Kind::All.figure(&sample.amounts);
        }
    }
    let mut all: Vec<Silent> = bytes.into_values().collect();
    all.sort_by(|a, b| (b.bytes, a.runtime.name).cmp(&(a.bytes, b.runtime.name)));
    all
}

/// One line: runtimes that write no names, and their remedies.
pub(super) fn line(silent: &[Silent], whole: u64) -> Option<String> {
    let one = |one: &Silent| {
        let percent = one.bytes as f64 * 100.0 / whole.max(1) as f64;
        let Runtime { name, remedy, .. } = one.runtime;
        format!("{name} writes no names of its code ({percent:.1} % of bytes); {remedy}")
    };
    let parts: Vec<String> = silent.iter().take(NAMED).map(one).collect();
    (!parts.is_empty()).then(|| parts.join(". "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{at, kib, profile, symbols};
    use memprof_profile::Functions;
    use memprof_profile::symbol::Language;

    fn found(profile: &Profile, symbols: &Symbols) -> Vec<(&'static str, u64)> {
        let silent = silent(profile, symbols);
        silent
            .iter()
            .map(|s| (s.runtime.name, s.bytes >> 10))
            .collect()
    }

    #[test]
    fn the_caller_of_code_without_a_name_is_its_runtime() {
        let mut profile = profile(
            &[
                (&[at(1, 1), at(2, 7), at(2, 8), at(0, 1)], kib(60, 0)),
                // Interpreted code, which has no frame of its own.
                (&[at(1, 1), at(0, 2), at(0, 1)], kib(20, 0)),
                // A truncated stack.
                (&[at(1, 1), at(2, 9)], kib(7, 0)),
                // A stack with named JIT code, and one without JIT code.
                (&[at(1, 1), at(3, 1), at(2, 9), at(0, 1)], kib(500, 0)),
                (&[at(1, 1), at(0, 1)], kib(500, 0)),
            ],
            &[],
        );
        let named = symbols(&[(
            at(0, 2),
            "Builtins_InterpreterEntryTrampoline",
            Language::Other,
        )]);
        profile.modules = profile.modules[..2]
            .iter()
            .cloned()
            .chain([
                Arc::new(Module::jit()),
                Arc::new(Module {
                    functions: Some(Functions::new(Language::JavaScript, Origin::Runtime)),
                    ..Module::jit()
                }),
            ])
            .collect();
        assert_eq!(found(&profile, &named), [("node", 87)]);

        // With a second runtime, a truncated stack cannot be attributed to either.
        let jvm = Module {
            path: "/usr/lib/libjvm.so".into(),
            name: "libjvm.so".into(),
            ..Module::jit()
        };
        let modules = profile.modules.iter().cloned().chain([Arc::new(jvm)]);
        profile.modules = modules.collect();
        assert_eq!(found(&profile, &named), [("node", 80)]);
    }

    #[test]
    fn runtimes_are_known_by_their_files() {
        let of = |path: &str| {
            let module = Module {
                path: path.into(),
                name: path.rsplit('/').next().unwrap().into(),
                ..Module::jit()
            };
            Runtime::for_module(&module).map(|runtime| runtime.name)
        };
        for (path, name) in [
            ("/usr/bin/node", Some("node")),
            ("/usr/lib/libnode.so.108", Some("node")),
            ("/usr/bin/node_exporter", None),
            ("node", None),
            ("/opt/jdk/lib/server/libjvm.so", Some("Java")),
            ("/usr/sbin/php-fpm8.2", Some("PHP")),
            ("/usr/bin/phpunit", None),
        ] {
            assert_eq!(of(path), name, "{path}");
        }
    }

    #[test]
    fn the_line_says_which_option_brings_names() {
        let of = |name: &str, bytes| Silent {
            runtime: RUNTIMES.iter().find(|r| r.name == name).unwrap(),
            bytes,
        };
        assert_eq!(
            line(&[of("node", 334)], 1000).unwrap(),
            "node writes no names of its code (33.4 % of bytes); start it with NODE_OPTIONS='--perf-basic-prof --interpreted-frames-native-stack'"
        );
        assert_eq!(line(&[], 1000), None);
    }
}
