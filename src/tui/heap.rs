//! The newest heap snapshot, which the key `h` requests: a card of the overview, and lines above the other views.

use std::sync::Arc;

use super::state::UiState;
use super::view::View;
use super::words::clock;
use super::wrap::wrapped_to;
use memprof_heap::HeapSnapshot;
use memprof_profile::Subset;
use memprof_sys::ids::Pid;
use memprof_sys::text::printable;

/// Maximum number of lines about a snapshot above a view.
const MAX_LINES: usize = 4;

/// The text about a heap snapshot.
#[derive(Debug)]
pub(super) struct SaidOfHeap {
    /// The process, once the snapshot was taken.
    pub(super) pid: Option<Pid>,
    /// Which snapshot it is: `heap of process 7, 12:34:56 UTC`.
    pub(super) about: String,
    pub(super) sentences: Vec<String>,
}

impl SaidOfHeap {
    fn only(sentence: String) -> SaidOfHeap {
        SaidOfHeap {
            pid: None,
            about: "heap".to_owned(),
            sentences: vec![sentence],
        }
    }

    fn new(taken: &Result<Arc<HeapSnapshot>, String>) -> SaidOfHeap {
        let HeapSnapshot { heap, taken, .. } = match taken {
            Ok(taken) => &**taken,
            Err(why) => return SaidOfHeap::only(printable(why).into_owned()),
        };
        let mut sentences = heap.verdict();
        if !heap.rows.is_empty() {
            // The last sentence is about other commands.
            sentences.pop();
        }
        sentences.push(format!("Stop {:.1} ms", heap.taken.stop_ms));
        SaidOfHeap {
            pid: Some(Pid(heap.pid)),
            about: format!("heap of process {}, {}", heap.pid, clock(*taken)),
            sentences,
        }
    }
}

/// The newest heap snapshot.
#[derive(Debug, Default)]
pub(super) struct NewestHeap {
    /// The text about the newest snapshot; `None` before the first request.
    pub(super) said: Option<SaidOfHeap>,
    /// Whether a snapshot is being taken.
    taking: bool,
    /// The process for which a snapshot is requested.
    pub(super) wanted: Option<Pid>,
}

impl NewestHeap {
    /// Requests a snapshot of a process, unless one is being taken.
    pub(super) fn request(&mut self, pid: Option<Pid>) {
        if self.taking {
            return;
        }
        self.said = Some(SaidOfHeap::only(match pid {
            None => "there is no report yet".to_owned(),
            Some(pid) => format!("taking a snapshot of process {pid} …"),
        }));
        (self.wanted, self.taking) = (pid, pid.is_some());
    }

    /// Shows a snapshot, or the reason why there is none.
    pub(super) fn show(&mut self, taken: &Result<Arc<HeapSnapshot>, String>) {
        (self.said, self.taking) = (Some(SaidOfHeap::new(taken)), false);
    }
}

impl UiState {
    /// The process for a heap snapshot: the selected one, or else the one that the view shows.
    pub(super) fn process_in_view(&self) -> Option<Pid> {
        match self.selected().map(|row| &row.subset) {
            Some(Some(Subset::Process(pid))) => Some(*pid),
            _ => self.shown().map(|report| report.profile.target.pid),
        }
    }

    /// The lines above a view; none before the first request, and in the overview, which has a card. Text that does not fit is
    /// truncated with a mark.
    pub(super) fn heap_lines(&self) -> Vec<String> {
        let Some(said) = self
            .heap
            .said
            .as_ref()
            .filter(|_| self.view != View::Overview)
        else {
            return Vec::new();
        };
        let (width, height) = self.size;
        let most = match height {
            18.. => MAX_LINES,
            _ => 1,
        };
        let text = format!("{}: {}", said.about, said.sentences.join(" "));
        wrapped_to(&text, width.into(), most)
    }
}
