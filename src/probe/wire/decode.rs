//! Decodes records of the ring buffer into [`Event`]s.

use super::skel::types::{
    self as abi, code_event, function_event, mark_event, names_event, oom_event, peak_event,
    process_event, range_event, sample_event, sent_text, stack_event,
};
use super::{Malformed, read_record};
use crate::probe::event::{
    CodeSeen, Event, FrameLocation, FunctionNumber, FunctionSeen, LineTable, MarkSet, OomVictim,
    PeakSeen, ProcessChange, ProcessEvent, RangeChange, RangeEvent, SampleFreed, SampledAllocation,
    StackSeen,
};
use memprof_code::interpreter::{InterpreterKind, qualified};
use memprof_code::jit::NamesWritten;
use memprof_code::modules::FileNumber;
use memprof_profile::{Outcome, PartialReason};
use memprof_sys::ids::{Addr, FileKey, MmId, Pid, StackId};

/// Decodes one ring-buffer record.
///
/// # Errors
/// [`Malformed`] if the bytes are not a record of this version; nothing is guessed.
pub fn decode(bytes: &[u8]) -> Result<Event, Malformed> {
    let kind = bytes.first_chunk().ok_or(Malformed::Short)?;
    match abi::event_kind(u32::from_ne_bytes(*kind)) {
        abi::event_kind::EVENT_STACK => decode_stack(bytes).map(Event::Stack),
        abi::event_kind::EVENT_PROCESS => decode_process(bytes).map(Event::Process),
        abi::event_kind::EVENT_RANGE => decode_range(bytes).map(Event::Range),
        abi::event_kind::EVENT_CODE => decode_code(bytes).map(Event::Code),
        abi::event_kind::EVENT_FUNCTION => decode_function(bytes).map(Event::Function),
        abi::event_kind::EVENT_NAMES => decode_names(bytes).map(Event::Names),
        abi::event_kind::EVENT_ALLOCATION => decode_allocation(bytes).map(Event::Allocation),
        abi::event_kind::EVENT_FREE => decode_free(bytes).map(Event::Free),
        abi::event_kind::EVENT_MARK => decode_mark(bytes).map(Event::Mark),
        abi::event_kind::EVENT_OOM_KILL => decode_oom_kill(bytes).map(Event::OomKill),
        abi::event_kind::EVENT_PEAK => decode_peak(bytes).map(Event::Peak),
        _ => Err(Malformed::Unknown),
    }
}

fn decode_stack(bytes: &[u8]) -> Result<StackSeen, Malformed> {
    const FIXED: usize = std::mem::offset_of!(stack_event, frames);
    let e: stack_event = read_record(bytes, FIXED)?;
    let nr = e.nr as usize;
    if nr > e.frames.len() || bytes.len() < FIXED + 8 * nr {
        return Err(Malformed::Short);
    }
    Ok(StackSeen {
        id: StackId(e.stack_id),
        mm: MmId(e.mm_id),
        pid: (e.pid != 0).then_some(Pid(e.pid)),
        outcome: decode_outcome(e.outcome)?,
        before: e.before as usize,
        last: e.last != 0,
        unmerged: e.unmerged,
        by_order: e.by_order != 0,
        frames: e.frames[..nr].iter().map(|&f| decode_place(f)).collect(),
    })
}

const FRAME_IN_FILE: u64 = 1 << abi::frame_bits::FRAME_IN_FILE_BIT.0;
const FRAME_INTERPRETED: u64 = 1 << abi::frame_bits::FRAME_INTERPRETED_BIT.0;
const FRAME_EVALUATOR: u64 = FRAME_INTERPRETED | 1 << abi::frame_bits::FRAME_EVALUATOR_BIT.0;
const FRAME_FUNCTION_SHIFT: u32 = abi::frame_bits::FRAME_FUNCTION_SHIFT.0;
const FRAME_NO_INSTRUCTION: u32 = abi::frame_bits::FRAME_NO_INSTRUCTION.0;
const FRAME_FILE_SHIFT: u32 = abi::frame_bits::FRAME_FILE_SHIFT.0;

fn decode_place(frame: u64) -> FrameLocation {
    if frame == FRAME_EVALUATOR {
        return FrameLocation::Evaluator;
    }
    if frame & FRAME_IN_FILE == 0 && frame & FRAME_INTERPRETED != 0 {
        let at = (frame & u64::from(FRAME_NO_INSTRUCTION)) as u32;
        let function = (frame & !FRAME_INTERPRETED) >> FRAME_FUNCTION_SHIFT;
        let at = (at != FRAME_NO_INSTRUCTION).then_some(at);
        return FrameLocation::Interpreted(FunctionNumber(function as u32), at);
    }
    if frame & FRAME_IN_FILE == 0 {
        return FrameLocation::Address(Addr(frame));
    }
    let number = frame >> FRAME_FILE_SHIFT & ((1 << abi::frame_bits::FRAME_FILE_BITS.0) - 1);
    let address = frame & ((1 << FRAME_FILE_SHIFT) - 1);
    FrameLocation::InFile(FileNumber(number as u32), address)
}

fn decode_code(bytes: &[u8]) -> Result<CodeSeen, Malformed> {
    let e: code_event = read_record(bytes, size_of::<code_event>())?;
    Ok(CodeSeen {
        mm: (e.mm_id != 0).then_some(MmId(e.mm_id)),
        pid: (e.pid != 0).then_some(Pid(e.pid)),
        bound: e.bound != 0,
        start: Addr(e.start),
        // The vDSO has no inode, but a size.
        file: (e.file.ino != 0 || e.file.size != 0).then_some(FileKey {
            dev: e.file.dev,
            ino: e.file.ino,
            modified: e.file.modified,
            size: e.file.size,
        }),
    })
}

fn decode_function(bytes: &[u8]) -> Result<FunctionSeen, Malformed> {
    const FIXED: usize = std::mem::offset_of!(function_event, lines_table);
    let e: function_event = read_record(bytes, FIXED)?;
    let lines = bytes[FIXED..].get(..e.lines_size as usize);
    let interpreter = match abi::interpreter_kind(e.interpreter) {
        abi::interpreter_kind::INTERPRETER_PYTHON => InterpreterKind::Python,
        abi::interpreter_kind::INTERPRETER_RUBY => InterpreterKind::Ruby,
        _ => return Err(Malformed::Unknown),
    };
    let mut name = decode_text(&e.name, &e.name_text, Cut::End);
    if interpreter == InterpreterKind::Ruby && e.owner.sent > 0 {
        let class = decode_text(&e.owner, &e.lines_table, Cut::End);
        name = qualified(&name, &class, e.singleton != 0);
    }
    Ok(FunctionSeen {
        number: FunctionNumber(e.function),
        mm: MmId(e.mm_id),
        pid: (e.pid != 0).then_some(Pid(e.pid)),
        code: Addr(e.code),
        check: e.check,
        interpreter,
        version: e.version as u16,
        lines: match lines {
            Some(lines) => LineTable::Sent(lines.into()),
            None => LineTable::At(Addr(e.lines)),
        },
        first_line: match interpreter {
            InterpreterKind::Python => e.first_line,
            // In Ruby, the code of a whole file has line 0.
            InterpreterKind::Ruby => e.first_line.max(1),
        },
        name,
        file: decode_text(&e.file, &e.file_text, Cut::Start),
    })
}

/// The `width` that stands for UTF-8.
const UTF8: usize = 8;

/// The end at which a long text is cut.
enum Cut {
    Start,
    End,
}

/// Decodes the text in `bytes`; `?` if it could not be read. Invalid characters are replaced.
fn decode_text(text: &sent_text, bytes: &[u8], cut: Cut) -> String {
    let sent = bytes.get(..text.sent as usize).unwrap_or_default();
    let wide = |width: usize| {
        let units = sent.chunks_exact(width).map(move |unit| {
            let byte = |(at, b): (usize, &u8)| u32::from(*b) << (8 * at);
            unit.iter().enumerate().map(byte).sum::<u32>()
        });
        let character = |code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        units.map(character).collect::<String>()
    };
    let width = text.width as usize;
    let known = match width {
        UTF8 if !sent.is_empty() => String::from_utf8_lossy(sent).into_owned(),
        1 | 2 | 4 if !sent.is_empty() => wide(width),
        _ => return "?".to_owned(),
    };
    let unit = if width == UTF8 { 1 } else { width };
    let is_cut = (sent.len() / unit) < text.length as usize;
    match cut {
        Cut::Start if is_cut => format!("…{known}"),
        Cut::End if is_cut => format!("{known}…"),
        _ => known,
    }
}

fn decode_names(bytes: &[u8]) -> Result<NamesWritten, Malformed> {
    let e: names_event = read_record(bytes, size_of::<names_event>())?;
    Ok(NamesWritten {
        mm: MmId(e.mm_id),
        inode: e.ino,
        end: e.end,
    })
}

fn decode_allocation(bytes: &[u8]) -> Result<SampledAllocation, Malformed> {
    let e: sample_event = read_record(bytes, size_of::<sample_event>())?;
    Ok(SampledAllocation {
        mm: MmId(e.mm_id),
        stack: StackId(e.stack_id),
        thread: e.tid,
        address: Addr(e.address),
        size: e.size,
        weight: e.weight,
        at: e.at,
    })
}

fn decode_free(bytes: &[u8]) -> Result<SampleFreed, Malformed> {
    let e: sample_event = read_record(bytes, size_of::<sample_event>())?;
    Ok(SampleFreed {
        mm: MmId(e.mm_id),
        address: Addr(e.address),
        at: e.at,
    })
}

fn decode_mark(bytes: &[u8]) -> Result<MarkSet, Malformed> {
    let e: mark_event = read_record(bytes, size_of::<mark_event>())?;
    let name = e.name.get(..e.length as usize).ok_or(Malformed::Short)?;
    Ok(MarkSet {
        mm: MmId(e.mm_id),
        name: (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned()),
        at: e.at,
    })
}

fn decode_oom_kill(bytes: &[u8]) -> Result<OomVictim, Malformed> {
    let e: oom_event = read_record(bytes, size_of::<oom_event>())?;
    Ok(OomVictim {
        pid: Pid(e.pid),
        mm: MmId(e.mm_id),
        at: e.at,
    })
}

fn decode_outcome(of: u32) -> Result<Outcome, Malformed> {
    Ok(match abi::outcome(of) {
        abi::outcome::OUTCOME_COMPLETE => Outcome::Complete,
        abi::outcome::OUTCOME_UNREADABLE => Outcome::Partial(PartialReason::UnreadableStack),
        abi::outcome::OUTCOME_NO_FRAME_POINTER => Outcome::Partial(PartialReason::NoFramePointer),
        abi::outcome::OUTCOME_DEPTH_LIMIT => Outcome::Partial(PartialReason::DepthLimit),
        abi::outcome::OUTCOME_NOT_TAKEN => Outcome::NotTaken,
        abi::outcome::OUTCOME_ASSISTED => Outcome::Assisted,
        abi::outcome::OUTCOME_NO_MAPPING => Outcome::Partial(PartialReason::NoMapping),
        abi::outcome::OUTCOME_NO_TABLE => Outcome::Partial(PartialReason::NoTable),
        abi::outcome::OUTCOME_UNSUPPORTED => Outcome::Partial(PartialReason::UnsupportedRule),
        _ => return Err(Malformed::Unknown),
    })
}

fn decode_process(bytes: &[u8]) -> Result<ProcessEvent, Malformed> {
    let e: process_event = read_record(bytes, size_of::<process_event>())?;
    let change = match abi::process_change(e.change) {
        abi::process_change::PROCESS_FOUND => ProcessChange::Found,
        abi::process_change::PROCESS_MATCHED => ProcessChange::Matched,
        abi::process_change::PROCESS_FORKED => ProcessChange::Forked {
            parent_mm: MmId(e.parent_mm_id),
            parent: Pid(e.parent_pid),
        },
        abi::process_change::PROCESS_EXECED => ProcessChange::Execed {
            left: MmId(e.parent_mm_id),
        },
        abi::process_change::PROCESS_EXITED => ProcessChange::Exited {
            has_memory: e.parent_mm_id == e.mm_id,
            page_tables: e.page_tables,
            highest_rss: e.highest_rss,
        },
        _ => return Err(Malformed::Unknown),
    };
    let name = e.comm.split(|&b| b == 0).next().unwrap_or_default();
    Ok(ProcessEvent {
        pid: Pid(e.pid),
        mm: MmId(e.mm_id),
        comm: String::from_utf8_lossy(name).into_owned(),
        change,
    })
}

fn decode_peak(bytes: &[u8]) -> Result<PeakSeen, Malformed> {
    let e: peak_event = read_record(bytes, size_of::<peak_event>())?;
    let pages = |counter: abi::rss_counter| e.rss[counter.0 as usize];
    Ok(PeakSeen {
        mm: MmId(e.mm_id),
        copy: MmId(e.copy_id),
        incomplete: e.incomplete != 0,
        dropped: e.start..e.end,
        at: e.at,
        file: pages(abi::rss_counter::RSS_FILE),
        anon: pages(abi::rss_counter::RSS_ANON),
        shmem: pages(abi::rss_counter::RSS_SHMEM),
        swap: pages(abi::rss_counter::RSS_SWAP),
        highest_before: e.highest_rss,
        others: e.others,
    })
}

fn decode_range(bytes: &[u8]) -> Result<RangeEvent, Malformed> {
    let e: range_event = read_record(bytes, size_of::<range_event>())?;
    let stack = StackId(e.stack_id);
    let has = |flag: abi::range_flag| e.flags & flag.0 != 0;
    let change = match abi::range_change(e.change) {
        abi::range_change::RANGE_MAPPED => RangeChange::Mapped {
            stack,
            populated: has(abi::range_flag::RANGE_FLAG_POPULATE),
            code: has(abi::range_flag::RANGE_FLAG_CODE),
        },
        abi::range_change::RANGE_POPULATED => RangeChange::Populated { stack },
        abi::range_change::RANGE_UNMAPPED => RangeChange::Unmapped,
        abi::range_change::RANGE_MOVED => RangeChange::Moved { from: Addr(e.from) },
        abi::range_change::RANGE_EMPTIED => RangeChange::Emptied,
        abi::range_change::RANGE_EXECUTABLE => RangeChange::Executable,
        _ => return Err(Malformed::Unknown),
    };
    Ok(RangeEvent {
        mm: MmId(e.mm_id),
        start: Addr(e.start),
        end: Addr(e.end),
        change,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record_bytes;
    use super::*;

    fn stack_record(nr: u32, outcome: u32) -> stack_event {
        let mut e = stack_event {
            kind: abi::event_kind::EVENT_STACK.0,
            mm_id: 3,
            stack_id: 17,
            pid: 42,
            nr,
            outcome,
            last: 1,
            ..Default::default()
        };
        for (i, f) in e.frames.iter_mut().enumerate() {
            *f = 0x1000 + i as u64;
        }
        e.frames[1] = FRAME_IN_FILE | 7 << FRAME_FILE_SHIFT | 0x1234;
        e
    }

    #[test]
    fn a_stack_carries_only_its_frames() {
        let e = stack_record(2, 0);
        let bytes = &record_bytes(&e)[..40 + 16];
        let Ok(Event::Stack(s)) = decode(bytes) else {
            panic!("not a stack");
        };
        let in_file = FrameLocation::InFile(FileNumber(7), 0x1234);
        assert_eq!(s.frames, [FrameLocation::Address(Addr(0x1000)), in_file]);
        assert_eq!((s.id, s.mm, s.pid), (StackId(17), MmId(3), Some(Pid(42))));
        assert_eq!(s.outcome, Outcome::Complete);
        assert_eq!((s.before, s.last), (0, true));
    }

    #[test]
    fn a_cut_stack_is_refused() {
        let e = stack_record(3, 0);
        assert_eq!(decode(&record_bytes(&e)[..40 + 16]), Err(Malformed::Short));
        assert_eq!(
            decode(record_bytes(&stack_record(249, 0))),
            Err(Malformed::Short)
        );
        assert_eq!(
            decode(record_bytes(&stack_record(1, 99))),
            Err(Malformed::Unknown)
        );
    }

    #[test]
    fn a_process_event_has_its_name() {
        let mut e = process_event {
            kind: abi::event_kind::EVENT_PROCESS.0,
            change: abi::process_change::PROCESS_EXECED.0,
            pid: 7,
            mm_id: 2,
            parent_mm_id: 1,
            ..Default::default()
        };
        e.comm[..4].copy_from_slice(b"node");
        let Ok(Event::Process(p)) = decode(record_bytes(&e)) else {
            panic!("not a process");
        };
        assert_eq!(p.comm, "node");
        assert_eq!(p.change, ProcessChange::Execed { left: MmId(1) });
    }

    #[test]
    fn a_kill_names_the_process_and_the_moment() {
        let e = oom_event {
            kind: abi::event_kind::EVENT_OOM_KILL.0,
            mm_id: 3,
            pid: 42,
            at: 1_000_000,
            ..Default::default()
        };
        let victim = OomVictim {
            pid: Pid(42),
            mm: MmId(3),
            at: 1_000_000,
        };
        assert_eq!(decode(record_bytes(&e)), Ok(Event::OomKill(victim)));
        assert_eq!(decode(&record_bytes(&e)[..16]), Err(Malformed::Short));
    }

    #[test]
    fn a_peak_has_the_counters_and_the_dropped_range() {
        let e = peak_event {
            kind: abi::event_kind::EVENT_PEAK.0,
            mm_id: 3,
            copy_id: 9,
            incomplete: 1,
            start: 0x1000,
            end: 0x3000,
            at: 7,
            rss: [1, 2, 3, 4],
            highest_rss: 8,
            others: 9,
        };
        let peak = PeakSeen {
            mm: MmId(3),
            copy: MmId(9),
            incomplete: true,
            dropped: 0x1000..0x3000,
            at: 7,
            file: 1,
            anon: 2,
            swap: 3,
            shmem: 4,
            highest_before: 8,
            others: 9,
        };
        assert_eq!((peak.rss(), peak.highest()), (7, 8));
        assert_eq!(decode(record_bytes(&e)), Ok(Event::Peak(peak)));
        assert_eq!(decode(&record_bytes(&e)[..80]), Err(Malformed::Short));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn known_kinds_with_any_rest_do_not_panic(
            kind in 0u32..15, rest in proptest::collection::vec(any::<u8>(), 0..1200),
        ) {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(rest);
            let _ = decode(&bytes);
        }
    }

    /// A function's record, and the number of its bytes that are sent.
    fn function_record(lines_size: u32) -> (function_event, usize) {
        let mut e = function_event {
            kind: abi::event_kind::EVENT_FUNCTION.0,
            mm_id: 3,
            pid: 42,
            function: 9,
            code: 0x7f00,
            lines: 0x8f00,
            check: 5,
            interpreter: abi::interpreter_kind::INTERPRETER_PYTHON.0,
            version: 11,
            first_line: 30,
            lines_size,
            ..Default::default()
        };
        e.name = sent_text {
            length: 2,
            sent: 4,
            width: 2,
            ascii: 0,
        };
        e.name_text[..4].copy_from_slice(&[0xe9, 0, 0xac, 0x20]);
        e.file = sent_text {
            length: 300,
            sent: 4,
            width: 1,
            ascii: 1,
        };
        e.file_text[..4].copy_from_slice(b"a.py");
        e.lines_table[..2].copy_from_slice(&[7, 8]);
        let sent = lines_size as usize;
        let lines = if sent <= e.lines_table.len() { sent } else { 0 };
        (e, std::mem::offset_of!(function_event, lines_table) + lines)
    }

    #[test]
    fn a_function_has_its_names_and_its_lines() {
        let (e, sent) = function_record(2);
        let Ok(Event::Function(f)) = decode(&record_bytes(&e)[..sent]) else {
            panic!("not a function");
        };
        assert_eq!(
            (f.number, f.mm, f.pid),
            (FunctionNumber(9), MmId(3), Some(Pid(42)))
        );
        assert_eq!((f.name.as_str(), f.file.as_str()), ("é€", "…a.py"));
        assert_eq!((f.version, f.first_line), (11, 30));
        assert_eq!(f.lines, LineTable::Sent([7, 8].into()));
        assert_eq!(decode(&record_bytes(&e)[..sent - 3]), Err(Malformed::Short));
    }

    #[test]
    fn a_long_table_of_lines_is_only_named() {
        for size in [1025, u32::MAX] {
            let (e, sent) = function_record(size);
            let Ok(Event::Function(f)) = decode(&record_bytes(&e)[..sent]) else {
                panic!("not a function");
            };
            assert_eq!(f.lines, LineTable::At(Addr(0x8f00)));
        }
    }

    #[test]
    fn an_interpreted_frame_has_its_function_and_its_instruction() {
        let frame =
            |function: u64, at: u64| FRAME_INTERPRETED | function << FRAME_FUNCTION_SHIFT | at;
        let place = |function, at| FrameLocation::Interpreted(FunctionNumber(function), at);
        assert_eq!(decode_place(frame(7, 12)), place(7, Some(12)));
        assert_eq!(
            decode_place(frame(7, FRAME_NO_INSTRUCTION.into())),
            place(7, None)
        );
        assert_eq!(
            decode_place(frame(u32::MAX.into(), 0)),
            place(u32::MAX, Some(0))
        );
        assert_eq!(decode_place(FRAME_EVALUATOR), FrameLocation::Evaluator);
    }
}
