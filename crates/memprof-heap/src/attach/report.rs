//! The result of `memprof attach-heap`: the library's state and counters, and the text for the user.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::detours::Redirected;
use super::safe_point::SafePoint;
use crate::sampler::{DetoursPlaced, Image, Imports, PythonState, SamplerState, Stats};
use memprof_sys::ids::Pid;

/// State of the library after it was loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedLibrary {
    pub state: SamplerState,
    pub python: PythonState,
    pub imports: Imports,
    pub detours: DetoursPlaced,
}

impl LoadedLibrary {
    /// Reads the state. `config` is the address of the library's options in the process.
    ///
    /// # Errors
    /// The process is gone, or there is no sampling library at this address.
    pub(super) fn read(memory: &File, config: u64, image: &Image) -> Result<LoadedLibrary> {
        let base = config.wrapping_sub(image.places.config);
        let context = "cannot read what the library says of itself";
        let mut magic = [0; 8];
        memory.read_exact_at(&mut magic, config).context(context)?;
        ensure!(
            image.has_magic(magic),
            "there is another library where it should be"
        );
        let mut bytes = [0; Stats::SIZE];
        let at = base.wrapping_add(image.places.stats);
        memory.read_exact_at(&mut bytes, at).context(context)?;
        let stats =
            Stats::parse(&bytes).context("what the library says of itself makes no sense")?;
        let mut bytes = [0; DetoursPlaced::SIZE];
        let at = base.wrapping_add(image.places.detours);
        memory.read_exact_at(&mut bytes, at).context(context)?;
        let detours = DetoursPlaced::parse(&bytes)
            .context("what the library says of itself makes no sense")?;
        let mut bytes = [0; Imports::SIZE];
        let at = base.wrapping_add(image.places.imports);
        memory.read_exact_at(&mut bytes, at).context(context)?;
        Ok(LoadedLibrary {
            state: stats.state,
            python: stats.python,
            imports: Imports::parse(&bytes),
            detours,
        })
    }
}

/// Summary of a successful attach.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub tid: i32,
    pub thread: String,
    pub place: SafePoint,
    /// How long the loading thread was stopped.
    pub held: Duration,
    /// Total time for which threads were stopped before, in search of a safe point.
    pub looked: Duration,
    /// Number of these stops.
    pub stops: u32,
    /// Total time from the beginning of the search.
    pub took: Duration,
    pub found: LoadedLibrary,
    /// Whether the functions of the executable's allocator lead to the library, or why not; `None` if it has no allocator.
    pub redirected: Option<Result<Redirected, String>>,
}

/// The text for the user, for a process without a loader.
pub(super) fn without_loader(
    pid: Pid,
    name: &str,
    redirected: Redirected,
    took: Duration,
) -> String {
    let Redirected {
        functions,
        left_out,
        held,
    } = redirected;
    let mut text = format!(
        "process {pid} ({name}) has the sampling library\n  \
         detours   {functions} functions of its allocator lead to the library, which has no loader there; for that, all threads were stopped for {}; all took {}\n",
        ms(held),
        ms(took),
    );
    if left_out > 0 {
        let _ = writeln!(
            text,
            "  not seen  calls of {left_out} functions of that allocator, which cannot be changed safely"
        );
    }
    let _ = writeln!(text, "next: memprof --heap --pid {pid}");
    text
}

/// The text for the user, for a process that had the library already, but not the functions of its executable's allocator.
pub(super) fn added(
    pid: Pid,
    name: &str,
    functions: usize,
    held: Duration,
    took: Duration,
) -> String {
    format!(
        "process {pid} ({name}) had the sampling library already\n  \
         detours   {functions} functions of its executable's own allocator lead to it now; for that, all threads were stopped for {}; \
         all took {}\nnext: memprof --heap --pid {pid}\n",
        ms(held),
        ms(took),
    )
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

impl Done {
    /// The text for the user.
    pub(super) fn text(&self, pid: Pid, name: &str) -> String {
        let imports = &self.found.imports;
        let place = match self.place {
            SafePoint::Waits(call) => format!("which waited in `{call}`"),
            SafePoint::Runs => "which ran the program's code".to_owned(),
        };
        let mut text = format!(
            "process {pid} ({name}) has the sampling library\n  \
             thread    {} ({}), {place}, loaded it; it was stopped for {}, the others ran on\n  \
             before    {} stops of single threads to find a safe moment, {} together; all took {}\n  \
             imports   {} in {} files lead to the library\n",
            self.tid,
            self.thread,
            ms(self.held),
            self.stops,
            ms(self.looked),
            ms(self.took),
            imports.patched,
            imports.files,
        );
        match &self.redirected {
            Some(Ok(redirected)) => {
                let _ = writeln!(
                    text,
                    "  detours   {} functions of the executable's own allocator lead to the library; for that, all threads were stopped for {}",
                    redirected.functions,
                    ms(redirected.held),
                );
                if redirected.left_out > 0 {
                    let _ = writeln!(
                        text,
                        "  not seen  calls of {} functions of that allocator, which cannot be changed safely",
                        redirected.left_out
                    );
                }
            }
            Some(Err(why)) => {
                let _ = writeln!(
                    text,
                    "  not seen  what the executable's own allocator allocates: {why}"
                );
            }
            None => {}
        }
        if imports.other + imports.failed > 0 {
            let _ = writeln!(
                text,
                "  not seen  {} imports that lead to another allocator, {} that could not be written",
                imports.other, imports.failed
            );
        }
        let is_redirected = matches!(self.redirected, Some(Ok(_)));
        if self.found.state == SamplerState::OwnMalloc && !is_redirected {
            text.push_str("  not seen  what the program allocates by its own `malloc`: only its libraries are seen\n");
        }
        match self.found.python {
            PythonState::Sampled => {
                text.push_str("  Python    the blocks of its own allocator are sampled, too\n");
            }
            PythonState::Hidden => text.push_str(
                "  not seen  the blocks of Python's own allocator: the program has installed another one, or its tables were not found\n",
            ),
            PythonState::New | PythonState::NotFound | PythonState::UsesMalloc => {}
        }
        let _ = writeln!(text, "next: memprof --heap --pid {pid}");
        text
    }
}
