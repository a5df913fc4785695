//! The `memprof advise` command: what a process is, and which commands answer which question about it.

use std::io::Write;

use anyhow::{Context, Result, anyhow};

use memprof_code::allocators;
use memprof_code::elf::Elf;
use memprof_code::modules::{AddressMap, ModuleTable};
use memprof_profile::Module;
use memprof_sys::ids::Pid;
use memprof_sys::process::{self, Container, Presence, ProcessTarget};
use memprof_sys::residency::figures;
use memprof_sys::text::{printable, size};

/// The kind of program, as far as its commands differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Python,
    Ruby,
    Java,
    Node,
    Go,
    Rust,
    Native,
}

/// What is known of a process without reading its memory.
#[derive(Debug)]
struct Facts {
    pid: Pid,
    runs: Runs,
    /// The allocator inside its executable, by the name of one of its functions.
    own_allocator: Option<String>,
    /// Whether it can get the sampling library: not if it is linked statically, and its allocator's functions have no symbols.
    can_attach: bool,
    /// Whether the executable has debug information.
    has_lines: bool,
    in_container: bool,
}

/// Returns the output of `memprof advise`.
///
/// # Errors
/// No process matches, several match, or permissions are missing; the message says what to do.
pub fn run(target: &ProcessTarget) -> Result<Vec<u8>> {
    let pid = target.process()?;
    let failed = || format!("cannot look at process {pid}");
    if let Some(why) = Presence::look_up(pid).refusal(pid) {
        return Err(anyhow!(why)).with_context(failed);
    }
    let figures = figures::counters(pid).with_context(failed)?;
    let mut table = ModuleTable::new();
    AddressMap::load(pid, &mut table).with_context(failed)?;
    let modules = table.modules();
    let own = modules.iter().find(|module| module.own_executable);
    let facts = Facts::gather(pid, own.map(|own| &**own));
    let comm = process::comm(pid).unwrap_or_default();
    let rss = figures.rss_anon + figures.rss_shmem + figures.rss_file;
    let mut out = Vec::new();
    writeln!(
        out,
        "{} (pid {pid}): {}, RSS {}, {} of it anonymous",
        printable(&comm),
        facts.kind(),
        size(rss),
        size(figures.rss_anon)
    )?;
    for (question, command) in facts.commands() {
        writeln!(out, "\n{question}\n  {command}")?;
    }
    let notes = facts.notes();
    if !notes.is_empty() {
        writeln!(out)?;
    }
    for note in notes {
        writeln!(out, "Note: {note}")?;
    }
    Ok(out)
}

impl Facts {
    fn gather(pid: Pid, own: Option<&Module>) -> Facts {
        let mut facts = Facts {
            pid,
            runs: Runs::Native,
            own_allocator: None,
            can_attach: false,
            has_lines: false,
            in_container: Container::for_process(pid).is_some_and(|c| c.id.is_some()),
        };
        let Some(own) = own else { return facts };
        let path = own.path.file_name().map(|name| name.to_string_lossy());
        let name = path.as_deref().unwrap_or_default();
        facts.runs = match own.is_runtime() {
            true if name.starts_with("python") => Runs::Python,
            true if name.starts_with("ruby") => Runs::Ruby,
            true if name.starts_with("java") => Runs::Java,
            true if name.starts_with("node") => Runs::Node,
            _ => Runs::Native,
        };
        let Some(elf) = own.file.as_ref().and_then(|file| Elf::read(file).ok()) else {
            return facts;
        };
        facts.has_lines = elf.has_debug_info();
        if facts.runs == Runs::Native {
            facts.runs = compiled_from(&elf);
        }
        let file = own.file.as_ref();
        facts.own_allocator = file.and_then(|file| allocators::unsampled_allocator(file));
        let has_own = || {
            file.and_then(|file| allocators::own_allocator(file))
                .is_some()
        };
        let is_reached = elf.interpreter().is_some() || has_own();
        facts.can_attach = cfg!(target_arch = "x86_64") && is_reached;
        facts
    }

    fn kind(&self) -> &'static str {
        match self.runs {
            Runs::Python => "Python",
            Runs::Ruby => "Ruby",
            Runs::Java => "Java",
            Runs::Node => "node",
            Runs::Go => "Go",
            Runs::Rust => "Rust",
            Runs::Native => "C, C++ or another compiled language",
        }
    }

    /// Questions, and the commands that answer them.
    fn commands(&self) -> Vec<(&'static str, String)> {
        let pid = self.pid;
        let mut commands = vec![(
            "What grows?",
            format!("sudo memprof growth --pid {pid} --duration 60"),
        )];
        let snapshot = format!("sudo memprof heap --pid {pid}");
        match self.runs {
            Runs::Python => commands.push(("Which objects does it have?", snapshot)),
            Runs::Java => commands.push((
                "Which objects does it have?",
                format!("jcmd {pid} GC.class_histogram"),
            )),
            Runs::Go => {}
            _ => commands.push(("What is in use, free or lost in its heap?", snapshot)),
        }
        commands.push((
            "Which code holds the memory that comes from now on? (page: http://127.0.0.1:17832/)",
            format!("sudo memprof --pid {pid}"),
        ));
        match (self.runs, &self.own_allocator) {
            (Runs::Go | Runs::Java | Runs::Node, _) => {}
            (_, None) if self.can_attach => commands.push((
                "Which code allocates and does not free? (loads a small library into the process)",
                format!("sudo memprof attach-heap --pid {pid} && sudo memprof --heap --pid {pid}"),
            )),
            _ => commands.push((
                "Which code allocates and does not free? (counts every call for ten seconds)",
                format!("sudo memprof --heap=exact --duration 10 --pid {pid}"),
            )),
        }
        commands.push((
            "Its memory over days",
            format!("sudo memprof record {pid}.memprof.db --pid {pid}"),
        ));
        commands
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(function) = &self.own_allocator {
            notes.push(format!(
                "its executable has an allocator of its own ({}), which a loaded library does not see; --heap=exact does.",
                printable(function)
            ));
        }
        match self.runs {
            Runs::Java => notes.push(
                "names of Java methods need -XX:+PreserveFramePointer at its start, and jcmd PID Compiler.perfmap.".to_owned(),
            ),
            Runs::Node => notes.push(
                "names of JavaScript functions need NODE_OPTIONS='--perf-basic-prof --interpreted-frames-native-stack' at its start."
                    .to_owned(),
            ),
            Runs::Go => notes.push(
                "Go's heap is not malloc's: for allocation sites, use its own pprof.".to_owned(),
            ),
            Runs::Rust | Runs::Native if !self.has_lines => notes.push(
                "its executable has no debug information, so there are no source lines and no inlined functions, unless a debug \
                 file is found (build with -g, Rust: debug = 1)."
                    .to_owned(),
            ),
            _ => {}
        }
        if self.in_container {
            notes.push("it runs in a container: from the host, --pid works with the process id on the host.".to_owned());
        }
        notes
    }
}

/// The language that an executable was compiled from, if it says so.
fn compiled_from(elf: &Elf<'_>) -> Runs {
    if elf.section_named(".gopclntab").is_some() || elf.section_named(".go.buildinfo").is_some() {
        return Runs::Go;
    }
    let comment = elf.section_named(".comment");
    let comment = comment.and_then(|section| elf.contents(section).ok());
    let is_rust = comment.is_some_and(|text| text.windows(5).any(|part| part == b"rustc"));
    if is_rust { Runs::Rust } else { Runs::Native }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(runs: Runs) -> Facts {
        Facts {
            pid: Pid(42),
            runs,
            own_allocator: None,
            can_attach: true,
            has_lines: true,
            in_container: false,
        }
    }

    fn said(facts: &Facts) -> String {
        let commands = facts.commands().into_iter().map(|(_, command)| command);
        commands.chain(facts.notes()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_kind_of_program_gets_what_works_for_it() {
        assert!(said(&facts(Runs::Native)).contains("attach-heap --pid 42"));
        assert!(said(&facts(Runs::Python)).contains("memprof heap --pid 42"));
        assert!(said(&facts(Runs::Go)).contains("pprof"));
        assert!(!said(&facts(Runs::Go)).contains("attach-heap"));
        let own = Facts {
            own_allocator: Some("_rjem_malloc".to_owned()),
            ..facts(Runs::Rust)
        };
        let said = said(&own);
        assert!(
            said.contains("--heap=exact --duration 10") && said.contains("_rjem_malloc"),
            "{said}"
        );
        assert!(!said.contains("attach-heap"), "{said}");
    }
}
