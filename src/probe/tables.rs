//! The probe's BPF maps of unwind tables.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::batch::each_entry;
use crate::probe::table_store::{CodeFile, PageAt, TableStore};
use crate::probe::wire::{
    self, MAX_SEGMENTS, MemprofSkel, UNWIND_TABLE_END, code_file, code_segment, file_key,
    interpreter_file, interpreter_kind, python_layout, ruby_layout, unwind_page, unwind_page_key,
    unwind_rule, unwind_space,
};
use memprof_code::interpreter::{Interpreter, PythonLayout, Ruby};
use memprof_code::modules::FileNumber;
use memprof_code::unwind::Rule;
use memprof_sys::ids::FileKey;

/// Address spaces per read, 16 KiB each.
const SPACES: u32 = 32;

const CHUNK_BYTES: usize = 4 * <TableMaps as TableStore>::CHUNK_ROWS as usize;

/// Handles to the maps, and to the row chunks created so far.
pub struct TableMaps {
    spaces: MapHandle,
    files: MapHandle,
    pages: MapHandle,
    rules: MapHandle,
    outer: MapHandle,
    interpreter_files: MapHandle,
    /// Number of entries in `interpreter_files`.
    interpreters: u32,
    chunks: Vec<MapHandle>,
    /// Number of entries in `pages`.
    held: Rc<Cell<u64>>,
}

impl TableMaps {
    pub(super) fn new(skel: &MemprofSkel<'static>, held: Rc<Cell<u64>>) -> Result<TableMaps> {
        let maps = &skel.maps;
        let handle = |map: &libbpf_rs::MapMut<'_>| {
            MapHandle::try_from(map).context("cannot get a handle to a BPF map of unwind tables")
        };
        Ok(TableMaps {
            spaces: handle(&maps.unwind_spaces)?,
            files: handle(&maps.code_files)?,
            pages: handle(&maps.unwind_pages)?,
            rules: handle(&maps.unwind_rules)?,
            outer: handle(&maps.unwind_chunks)?,
            interpreter_files: handle(&maps.interpreter_files)?,
            interpreters: 0,
            chunks: Vec::new(),
            held,
        })
    }

    /// Number of files with an interpreter.
    pub fn interpreters(&self) -> u32 {
        self.interpreters
    }

    fn make_chunk(&mut self) -> Result<()> {
        let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let chunk = MapHandle::create(
            MapType::Array,
            Some("memprof_rows"),
            4,
            CHUNK_BYTES as u32,
            1,
            &opts,
        )
        .context("cannot create a BPF map for unwind table rows")?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&chunk));
        let index = self.chunks.len() as u32;
        self.outer
            .update(&index.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
        self.chunks.push(chunk);
        Ok(())
    }
}

impl TableStore for TableMaps {
    const RULES: u32 = 65_536;
    const CHUNK_ROWS: u32 = 1 << 18;
    const CHUNKS: u32 = 64;
    const SEGMENTS: usize = MAX_SEGMENTS;

    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> Result<()> {
        for (index, rule) in (first..).zip(rules) {
            let record = unwind_rule {
                cfa: rule.cfa,
                fp: rule.fp,
                flags: rule.flags | rule.needs(),
                cfa_offset: rule.cfa_offset,
                fp_offset: rule.fp_offset,
                ra_offset: rule.ra_offset,
            };
            self.rules.update(
                &index.to_ne_bytes(),
                wire::record_bytes(&record),
                MapFlags::ANY,
            )?;
        }
        Ok(())
    }

    fn write_rows(&mut self, chunk: u32, parts: &[(u32, &[u32])]) -> Result<()> {
        while self.chunks.len() <= chunk as usize {
            self.make_chunk()?;
        }
        // An update replaces the whole value: the rows of other tables are written back unchanged.
        let (chunk, key) = (&self.chunks[chunk as usize], 0u32.to_ne_bytes());
        let value = chunk.lookup(&key, MapFlags::ANY)?;
        let mut bytes = value.unwrap_or_else(|| vec![0; CHUNK_BYTES]);
        for (first, rows) in parts {
            let places = bytes.chunks_exact_mut(4).skip(*first as usize);
            for (place, row) in places.zip(*rows) {
                place.copy_from_slice(&row.to_ne_bytes());
            }
        }
        Ok(chunk.update(&key, &bytes, MapFlags::ANY)?)
    }

    fn write_page(&mut self, file: FileNumber, page: u32, at: PageAt) -> Result<()> {
        let key = unwind_page_key {
            table: file.0,
            page,
        };
        let value = unwind_page {
            chunk: at.chunk,
            first: at.first,
            count: at.count,
            rules: at.rules,
        };
        let (key, value) = (wire::record_bytes(&key), wire::record_bytes(&value));
        self.pages.update(key, value, MapFlags::ANY)?;
        self.held.set(self.held.get() + 1);
        Ok(())
    }

    fn delete_page(&mut self, file: FileNumber, page: u32) {
        let key = unwind_page_key {
            table: file.0,
            page,
        };
        // A page that cannot be deleted only occupies an entry.
        if self.pages.delete(wire::record_bytes(&key)).is_ok() {
            self.held.set(self.held.get().saturating_sub(1));
        }
    }

    fn write_end(&mut self, file: FileNumber) -> Result<()> {
        self.write_page(file, UNWIND_TABLE_END, PageAt::default())
    }

    fn delete_end(&mut self, file: FileNumber) {
        self.delete_page(file, UNWIND_TABLE_END);
    }

    fn write_file(&mut self, key: FileKey, file: &CodeFile) -> Result<()> {
        let key = file_key {
            ino: key.ino,
            modified: key.modified,
            size: key.size,
            dev: key.dev,
            pad: 0,
        };
        let mut value = code_file {
            table: file.number.map_or(0, |n| n.0),
            ready: file.ready.into(),
            nr: file.segments.len() as u8,
            ..Default::default()
        };
        for (to, from) in value.segment.iter_mut().zip(&file.segments) {
            *to = code_segment {
                offset: from.offset,
                size: from.size,
                address: from.addr,
            };
        }
        let (key, value) = (wire::record_bytes(&key), wire::record_bytes(&value));
        Ok(self.files.update(key, value, MapFlags::ANY)?)
    }

    fn write_interpreter(&mut self, file: FileNumber, interpreter: &Interpreter) -> Result<()> {
        let value = file_with(interpreter);
        self.interpreter_files.update(
            &file.0.to_ne_bytes(),
            wire::record_bytes(&value),
            MapFlags::ANY,
        )?;
        self.interpreters += 1;
        Ok(())
    }

    fn mapped(&self) -> Result<HashSet<FileNumber>> {
        let mut mapped = HashSet::new();
        each_entry(&self.spaces, SPACES, |_, bytes| {
            if let Ok(space) = wire::read_record::<unwind_space>(bytes, size_of::<unwind_space>()) {
                let all = space.at.iter().take(space.nr as usize);
                mapped.extend(all.map(|m| FileNumber(m.table)));
            }
        })
        .context("cannot read the BPF map of address spaces")?;
        Ok(mapped)
    }
}

fn file_with(interpreter: &Interpreter) -> interpreter_file {
    match interpreter {
        Interpreter::Python(python) => interpreter_file {
            kind: interpreter_kind::INTERPRETER_PYTHON.0,
            python: python_layout_of(python.layout),
            runtime: python.runtime,
            code_type: python.code_type,
            evaluator: python.evaluator.start,
            evaluator_end: python.evaluator.end,
            ..interpreter_file::default()
        },
        Interpreter::Ruby(ruby) => interpreter_file {
            kind: interpreter_kind::INTERPRETER_RUBY.0,
            ruby: ruby_layout_of(ruby),
            runtime: ruby.runtime,
            evaluator: ruby.evaluator.start,
            evaluator_end: ruby.evaluator.end,
            ..interpreter_file::default()
        },
    }
}

fn python_layout_of(l: &PythonLayout) -> python_layout {
    python_layout {
        version: l.version,
        frames: l.frames as u16,
        key: l.key,
        current: l.current,
        thread_id: l.thread_id,
        thread_frame: l.thread_frame,
        cframe_frame: l.cframe_frame,
        cframe_previous: l.cframe_previous,
        frame_code: l.frame_code,
        frame_previous: l.frame_previous,
        frame_instruction: l.frame_instruction,
        frame_entry: l.frame_entry,
        code_flags: l.code_flags,
        code_first_line: l.code_first_line,
        code_file: l.code_file,
        code_name: l.code_name,
        code_lines: l.code_lines,
        code_start: l.code_start,
        instruction_size: l.instruction_size,
        text_ascii: l.text_ascii,
        text_compact: l.text_compact,
        text_kind: l.text_kind,
        pad: [0; 2],
    }
}

fn ruby_layout_of(ruby: &Ruby) -> ruby_layout {
    let l = ruby.layout;
    let (major, minor) = l.version;
    ruby_layout {
        version: u16::from(major) << 8 | u16::from(minor),
        frame_size: l.frame_size,
        first_line_shift: l.first_line_is_object.into(),
        insns_info: l.insns_info,
        parent: l.parent,
        text_embedded: l.text_embedded,
        text_length: l.text_length,
        class_path: l.class_path,
        class_attached: l.class_attached,
        joins_rescue: l.joins_rescue.into(),
        is_program: ruby.is_program.into(),
        tls_words: ruby.tls_words,
    }
}
