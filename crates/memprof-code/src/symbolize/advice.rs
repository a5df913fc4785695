//! Advice on missing names: files of a profile without symbols, runtimes that write no names, and the remedy for each.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, mpsc};

use object::elf::SHT_SYMTAB;

use super::debuginfod_cache::CacheDirs;
use super::fetch::BuildId;
use super::{Job, PATIENCE, Symbolizer, debugfile, packages, runtimes};
use crate::elf::Elf;
use memprof_profile::symbol::{Symbol, Symbols, UnknownReason};
use memprof_profile::{Frame, FrameKind, Kind, Module, ModuleId, Profile};

/// Maximum number of files to mention.
const NAMED: usize = 3;
/// A file is mentioned if stacks with unnamed functions of it have at least 1/`SHARE` of all bytes.
const SHARE: u64 = 100;
/// Maximum number of files whose package is cached.
const MAX_KNOWN: usize = 256;
/// File names of the C library and the loader. Their exported functions have names, and users rarely need the others.
const C_LIBRARY: [&str; 6] = [
    "libc.so",
    "libc-2.",
    "libc.musl",
    "ld-linux",
    "ld-musl",
    "libpthread",
];

/// Minimum bytes of stacks with unnamed functions for a file to be mentioned. Searching the package lists takes several
/// tenths of a second, for which a small, short command should not wait.
const WORTH_SAYING: u64 = 1 << 20;

impl Symbolizer {
    /// One line about a profile with these symbols: files without symbols, runtimes that write no names of their JIT
    /// code, and the remedies ([`Symbols::advice`]).
    pub fn advice(&self, profile: &Profile, symbols: &Symbols) -> Option<String> {
        let whole = Kind::All.figure(&profile.total);
        let mut runtimes = runtimes::silent(profile, symbols);
        runtimes.retain(|one| one.bytes >= WORTH_SAYING.max(whole / SHARE));
        let parts = [
            self.advice_on_files(profile, symbols),
            runtimes::line(&runtimes, whole),
        ];
        let parts = parts.into_iter().flatten();
        let parts: Vec<String> = parts
            .chain(symbols.unread().take(NAMED).map(str::to_owned))
            .collect();
        (!parts.is_empty()).then(|| parts.join(". "))
    }

    fn advice_on_files(&self, profile: &Profile, symbols: &Symbols) -> Option<String> {
        let mut files = nameless(profile, symbols);
        files.retain(|file| file.bytes >= WORTH_SAYING);
        if files.is_empty() {
            return None;
        }
        let modules = files.iter().map(|file| Arc::clone(&file.module)).collect();
        let (reply, answer) = mpsc::sync_channel(1);
        let asked = Job::Remedies(modules, reply);
        self.requests.try_send(asked).ok()?;
        let remedies = answer.recv_timeout(PATIENCE).ok()?;
        let files = files.into_iter().zip(remedies);
        let files: Vec<_> = files.filter_map(|(f, remedy)| Some((f, remedy?))).collect();
        line(&files, Kind::All.figure(&profile.total), self.asking)
    }
}

/// A way to get the names of a file without symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Install this Debian package.
    Package(String),
    /// Query debuginfod servers.
    Debuginfod,
}

/// The remedies of files, each looked up once.
#[derive(Debug, Default)]
pub(super) struct Remedies {
    packages: HashMap<(u64, u64), Option<String>>,
}

impl Remedies {
    /// The remedies of several files. The files are untrusted: if reading one panics, it has no remedy.
    pub fn of_all(&mut self, modules: &[Arc<Module>], cache: &CacheDirs) -> Vec<Option<Remedy>> {
        let one = |module: &Arc<Module>| {
            let found = catch_unwind(AssertUnwindSafe(|| self.remedy(module, cache)));
            found.ok().flatten()
        };
        modules.iter().map(one).collect()
    }

    /// The remedy for a file; `None` if it has symbols, or if no remedy is known.
    fn remedy(&mut self, module: &Module, cache: &CacheDirs) -> Option<Remedy> {
        let elf = Elf::read(module.file.as_ref()?).ok()?;
        if elf.section_of_kind(SHT_SYMTAB).is_some()
            || debugfile::find(&elf, module, cache).is_some()
        {
            return None;
        }
        if self.packages.len() >= MAX_KNOWN {
            self.packages.clear();
        }
        let package = self.packages.entry(module.dev_ino);
        let package = package.or_insert_with(|| packages::debug_package(Path::new("/"), module));
        match package {
            Some(package) => Some(Remedy::Package(package.clone())),
            None => BuildId::from_elf(&elf).map(|_| Remedy::Debuginfod),
        }
    }
}

/// A file with unnamed functions, and the bytes of the stacks that contain such functions.
#[derive(Debug)]
pub(super) struct Nameless {
    pub module: Arc<Module>,
    pub bytes: u64,
}

/// Files with unnamed functions, sorted by the bytes of their stacks, descending.
pub(super) fn nameless(profile: &Profile, symbols: &Symbols) -> Vec<Nameless> {
    // Most profiles have no such frame; their stacks are not read again.
    let without: HashMap<Frame, ModuleId> = symbols
        .iter()
        .filter(|(_, symbol)| {
            matches!(
                symbol,
                Symbol::Unnamed(_) | Symbol::Unknown(UnknownReason::NoSymbol)
            )
        })
        .filter_map(|(frame, _)| match frame.kind() {
            FrameKind::Code(id, _) => profile
                .modules
                .get(usize::from(id.0))
                .is_some_and(|module| matters(module))
                .then_some((frame, id)),
            FrameKind::Unmapped(_) => None,
        })
        .collect();
    if without.is_empty() {
        return Vec::new();
    }
    let mut bytes: HashMap<ModuleId, u64> = HashMap::new();
    for sample in &profile.samples {
        let frames = sample.stack.frames.iter();
        let files: BTreeSet<ModuleId> = frames.filter_map(|f| without.get(f).copied()).collect();
        for file in files {
            *bytes.entry(file).or_default() += Kind::All.figure(&sample.amounts);
        }
    }
    let least = (Kind::All.figure(&profile.total) / SHARE).max(1);
    let mut all: Vec<Nameless> = bytes
        .into_iter()
        .filter(|(_, bytes)| *bytes >= least)
        .filter_map(|(id, bytes)| {
            let module = Arc::clone(profile.modules.get(usize::from(id.0))?);
            Some(Nameless { module, bytes })
        })
        .collect();
    all.sort_by(|a, b| (b.bytes, &a.module.path).cmp(&(a.bytes, &b.module.path)));
    all.truncate(2 * NAMED);
    all
}

/// Whether names of the file would be useful: it is an open file (the vDSO is not a file), and not the C library.
fn matters(module: &Module) -> bool {
    module.file.is_some()
        && module.path.is_absolute()
        && !C_LIBRARY.iter().any(|name| module.name.starts_with(name))
}

/// One line: files without symbols, and their remedies. `asking` says that servers are already queried.
pub(super) fn line(files: &[(Nameless, Remedy)], whole: u64, asking: bool) -> Option<String> {
    let helped = files
        .iter()
        .filter(|(_, remedy)| !asking || *remedy != Remedy::Debuginfod);
    let (mut names, mut packages) = (Vec::new(), Vec::new());
    for (file, remedy) in helped.take(NAMED) {
        let percent = file.bytes as f64 * 100.0 / whole.max(1) as f64;
        let of = if names.is_empty() { " of bytes" } else { "" };
        let name = &file.module.name;
        names.push(format!("{name} ({percent:.1} %{of})"));
        if let Remedy::Package(package) = remedy
            && !packages.contains(package)
        {
            packages.push(package.clone());
        }
    }
    if names.is_empty() {
        return None;
    }
    let install = format!("`apt install {}`", packages.join(" "));
    let brings = match (packages.is_empty(), asking) {
        (true, _) => "--debuginfod may bring names".to_owned(),
        (false, true) => format!("{install} brings names"),
        (false, false) => format!("{install} or --debuginfod brings names"),
    };
    Some(format!("No symbols in {}; {brings}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_profile::symbol::{Language, UnnamedFunction};

    fn file(name: &str, bytes: u64, remedy: Remedy) -> (Nameless, Remedy) {
        let module = Arc::new(Module {
            name: name.into(),
            ..Module::jit()
        });
        (Nameless { module, bytes }, remedy)
    }

    #[test]
    fn files_with_the_most_bytes_under_functions_without_a_name_are_found() {
        use crate::testing::{at, kib, profile, symbols};
        let names = [(at(0, 1), "main", Language::Other)];
        let unnamed = |frame| {
            let function = UnnamedFunction {
                name: "x".into(),
                offset_in_function: 0,
            };
            (frame, Arc::new(Symbol::Unnamed(function)))
        };
        let mut named = symbols(&names);
        for (frame, symbol) in [at(0, 2), at(1, 3)].map(unnamed) {
            named.insert(frame, symbol);
        }
        let mut profile = profile(
            &[
                (&[at(1, 3), at(0, 2), at(0, 1)], kib(6000, 0)),
                (&[at(0, 2), at(0, 2), at(0, 1)], kib(2000, 1000)),
                (&[at(0, 1)], kib(1000, 0)),
            ],
            &[],
        );
        // Neither file is open.
        assert!(nameless(&profile, &named).is_empty());
        let open = |module: &Arc<Module>| {
            Arc::new(Module {
                path: module.path.clone(),
                name: module.name.clone(),
                file: Some(tempfile::tempfile().unwrap().into()),
                ..Module::jit()
            })
        };
        profile.modules = profile.modules.iter().map(open).collect();
        let found = nameless(&profile, &named);
        let found: Vec<_> = found.iter().map(|f| (&*f.module.name, f.bytes)).collect();
        // The other file is the C library.
        assert_eq!(found, [("node", 9000 << 10)]);
    }

    #[test]
    fn the_line_says_what_would_bring_names() {
        let package = |name: &str| Remedy::Package(name.into());
        let both = [
            file("snake", 999, package("snake-dbg")),
            file("libfoo.so.1", 25, Remedy::Debuginfod),
        ];
        assert_eq!(
            line(&both, 1000, false).unwrap(),
            "No symbols in snake (99.9 % of bytes), libfoo.so.1 (2.5 %); `apt install snake-dbg` or --debuginfod brings names"
        );
        assert_eq!(
            line(&both, 1000, true).unwrap(),
            "No symbols in snake (99.9 % of bytes); `apt install snake-dbg` brings names"
        );
        assert_eq!(
            line(&both[1..], 1000, false).unwrap(),
            "No symbols in libfoo.so.1 (2.5 % of bytes); --debuginfod may bring names"
        );
        assert_eq!(line(&both[1..], 1000, true), None);
        assert_eq!(line(&[], 1000, false), None);
    }
}
