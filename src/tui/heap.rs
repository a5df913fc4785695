//! The lines about the newest heap snapshot, which the key `h` requests.

use std::sync::Arc;

use super::state::UiState;
use super::words::{clock, kib};
use memprof_heap::{Allocator, HeapSnapshot, SnapshotFigures};
use memprof_profile::Subset;
use memprof_sys::ids::Pid;
use memprof_sys::text::printable;

/// Maximum number of lines about a snapshot.
const MAX_LINES: usize = 3;

/// The newest heap snapshot.
#[derive(Debug, Default)]
pub(super) struct NewestHeap {
    /// The text about the snapshot.
    text: Option<String>,
    /// Whether a snapshot is being taken.
    taking: bool,
    /// The process for which a snapshot is requested.
    pub(super) wanted: Option<Pid>,
}

impl NewestHeap {
    /// Requests a snapshot of a process, unless one is being taken.
    pub(super) fn request(&mut self, pid: Option<Pid>) {
        self.text = match pid {
            _ if self.taking => return,
            None => Some("heap: there is no report yet".to_owned()),
            Some(pid) => Some(format!("heap: taking a snapshot of process {pid} …")),
        };
        (self.wanted, self.taking) = (pid, pid.is_some());
    }

    /// Shows a snapshot, or the reason why there is none.
    pub(super) fn show(&mut self, taken: &Result<Arc<HeapSnapshot>, String>) {
        (self.text, self.taking) = (Some(text(taken)), false);
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
}

/// The text about a snapshot, or the reason why there is none.
fn text(taken: &Result<Arc<HeapSnapshot>, String>) -> String {
    let HeapSnapshot { heap, taken, .. } = match taken {
        Ok(taken) => &**taken,
        Err(why) => return format!("heap: {}", printable(why)),
    };
    let figures = SnapshotFigures::from(heap);
    let what = match (heap.refused(), &heap.allocator) {
        (Some(reason), _) => format!("the heap was not read: {}", printable(reason)),
        (None, Allocator::Unknown) if figures.live == 0 => format!(
            "no heap that memprof reads; anonymous memory {}",
            size(figures.anonymous)
        ),
        (None, allocator) => in_use(&figures, matches!(allocator, Allocator::Glibc { .. })),
    };
    format!(
        "heap of process {}, {}: {what}, stop {:.1} ms",
        heap.pid,
        clock(*taken),
        heap.taken.stop_ms
    )
}

fn in_use(figures: &SnapshotFigures, is_glibc: bool) -> String {
    let unreachable = match figures.unreachable {
        Some(bytes) => format!(", {} unreachable", size(bytes)),
        None => String::new(),
    };
    let trimmed = match is_glibc {
        true => format!(
            " ({} would be returned by malloc_trim)",
            size(figures.trimmable)
        ),
        false => String::new(),
    };
    format!(
        "{} live, {} free{trimmed}{unreachable}",
        size(figures.live),
        size(figures.free)
    )
}

/// Formats bytes in KiB, or from 1 MiB in MiB.
fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", kib(bytes)),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

impl NewestHeap {
    /// The lines on the screen; none before the first request. Text that does not fit is truncated with a mark.
    pub(super) fn lines(&self, size: (u16, u16)) -> Vec<String> {
        let Some(text) = &self.text else {
            return Vec::new();
        };
        let width = usize::from(size.0);
        let most = match size.1 {
            18.. => MAX_LINES,
            _ => 1,
        };
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            let last = lines.len() - 1;
            let line = &mut lines[last];
            let space = usize::from(!line.is_empty());
            if line.chars().count() + space + word.chars().count() > width && !line.is_empty() {
                if lines.len() == most {
                    shorten(&mut lines[last], width);
                    return lines;
                }
                lines.push(word.to_owned());
                continue;
            }
            line.extend([" "].iter().take(space).copied());
            line.push_str(word);
        }
        lines
    }
}

fn shorten(line: &mut String, width: usize) {
    let kept = line
        .chars()
        .take(width.saturating_sub(2))
        .collect::<String>();
    *line = format!("{} …", kept.trim_end());
}
