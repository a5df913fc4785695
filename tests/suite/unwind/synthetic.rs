//! ELF files with hand-written call frame information.

use std::fs::File;
use std::io::Write;

use memprof_code::unwind::{Table, TableError};

/// Address of the code; the file holds 64 KiB of it.
pub const CODE: u64 = 0x1000;
pub const CODE_SIZE: u64 = 0x10000;
pub const X86_64: u16 = 62;
pub const AARCH64: u16 = 183;

const EH_FRAME: u64 = 0x20000;

/// The parts of an ELF file.
pub struct Made {
    pub machine: u16,
    /// First byte of the code and its address.
    pub code: Vec<u8>,
    pub code_addr: u64,
    /// Content of `.eh_frame`, at address 0x20000.
    pub eh_frame: Vec<u8>,
    /// Content of `.debug_frame`.
    pub debug_frame: Vec<u8>,
    /// Address of the first instruction; the file is a program if it is not 0.
    pub entry: u64,
    /// Omits the section headers, and adds `.eh_frame_hdr` instead.
    pub stripped: bool,
}

impl Made {
    pub fn new(machine: u16, eh_frame: Vec<u8>) -> Made {
        Made {
            machine,
            code: vec![0x90; CODE_SIZE as usize],
            code_addr: CODE,
            eh_frame,
            debug_frame: Vec::new(),
            entry: 0,
            stripped: false,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let names = b"\0.eh_frame\0.debug_frame\0.shstrtab\0";
        let code_at = 0x200;
        let hdr_at = code_at + self.code.len() as u64;
        let eh_at = hdr_at + 12;
        let debug_at = eh_at + self.eh_frame.len() as u64 + 8;
        let names_at = debug_at + self.debug_frame.len() as u64;
        let sections_at = names_at + names.len() as u64;
        let mut out = Vec::new();
        out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        let kind: u16 = if self.entry == 0 { 3 } else { 2 };
        put16(&mut out, &[kind, self.machine]);
        put32(&mut out, &[1]);
        let sections_at_said = if self.stripped { 0 } else { sections_at };
        put64(&mut out, &[self.entry, 64, sections_at_said]);
        put32(&mut out, &[0]);
        put16(
            &mut out,
            &[64, 56, 3, 64, if self.stripped { 0 } else { 4 }, 3],
        );
        let loaded = self.eh_frame.len() as u64 + 8 + 12;
        for (kind, flags, at, addr, size) in [
            (1, 5, code_at, self.code_addr, self.code.len() as u64),
            (1, 4, hdr_at, EH_FRAME - 12, loaded),
            (0x6474_e550, 4, hdr_at, EH_FRAME - 12, 12),
        ] {
            put32(&mut out, &[kind, flags]);
            put64(&mut out, &[at, addr, addr, size, size, 0x1000]);
        }
        out.resize(code_at as usize, 0);
        out.extend(&self.code);
        // Version 1; the pointer is relative to itself, 4 bytes; no count, no table.
        out.extend([1, 0x1b, 0xff, 0xff, 8, 0, 0, 0, 0, 0, 0, 0]);
        out.extend(&self.eh_frame);
        out.extend([0; 8]);
        out.extend(&self.debug_frame);
        out.extend(names);
        out.extend([0; 64]);
        let debug = self.debug_frame.len() as u64;
        for (name, kind, addr, at, size) in [
            (1, 1, EH_FRAME, eh_at, self.eh_frame.len() as u64),
            (11, 1, 0, debug_at, debug),
            (24, 3, 0, names_at, names.len() as u64),
        ] {
            put32(&mut out, &[name, kind]);
            put64(&mut out, &[2, addr, at, size]);
            put32(&mut out, &[0, 0]);
            put64(&mut out, &[1, 0]);
        }
        out
    }

    pub fn table(&self) -> Result<Table, TableError> {
        Table::build(&file_of(&self.bytes()))
    }
}

pub fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn put16(out: &mut Vec<u8>, values: &[u16]) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn put32(out: &mut Vec<u8>, values: &[u32]) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn put64(out: &mut Vec<u8>, values: &[u64]) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

/// A section that is being written.
#[derive(Default)]
pub struct Frames(pub Vec<u8>);

/// The encoding of addresses in FDEs.
#[derive(Clone, Copy)]
pub struct Encoding(pub u8);

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, what compilers write.
pub const PCREL: Encoding = Encoding(0x1b);

impl Frames {
    /// Adds a CIE: code factor 1, data factor -8. Returns its offset, for its FDEs.
    pub fn cie(&mut self, augmentation: &str, ra: u8, encoding: Encoding, program: &[u8]) -> usize {
        let mut body = vec![0, 0, 0, 0, 1];
        body.extend(augmentation.as_bytes());
        body.extend([0, 1, 0x78, ra]);
        if augmentation.starts_with('z') {
            body.extend([1, encoding.0]);
        }
        body.extend(program);
        self.entry(body)
    }

    pub fn fde(&mut self, cie: usize, start: u64, size: u64, encoding: Encoding, program: &[u8]) {
        let at = self.0.len() + 4;
        let mut body = ((at - cie) as u32).to_le_bytes().to_vec();
        let here = EH_FRAME + at as u64 + 4;
        let from = match encoding.0 & 0x70 {
            0x10 => start.wrapping_sub(here),
            _ => start,
        };
        match encoding.0 & 0x0f {
            // Two, four or eight bytes, signed or not.
            2 | 10 => {
                body.extend((from as u16).to_le_bytes());
                body.extend((size as u16).to_le_bytes());
            }
            3 | 11 => {
                body.extend((from as u32).to_le_bytes());
                body.extend((size as u32).to_le_bytes());
            }
            _ => {
                body.extend(from.to_le_bytes());
                body.extend(size.to_le_bytes());
            }
        }
        body.push(0);
        body.extend(program);
        self.entry(body);
    }

    fn entry(&mut self, mut body: Vec<u8>) -> usize {
        while !(body.len() + 4).is_multiple_of(8) {
            body.push(0);
        }
        let at = self.0.len();
        self.0.extend((body.len() as u32).to_le_bytes());
        self.0.extend(body);
        at
    }
}

/// CFA = rsp + 8, return address at CFA - 8.
pub const X86_START: &[u8] = &[0x0c, 7, 8, 0x90, 1];
/// CFA = sp.
pub const ARM_START: &[u8] = &[0x0c, 31, 0];

/// One function at 0x1000, 0x100 bytes long, in an x86-64 file.
pub fn x86(program: &[u8]) -> Made {
    let mut frames = Frames::default();
    let cie = frames.cie("zR", 16, PCREL, X86_START);
    frames.fde(cie, CODE, 0x100, PCREL, program);
    Made::new(X86_64, frames.0)
}

/// A `.debug_frame` for x86-64 with one function, 0x100 bytes from `CODE + 0x80` on: CFA = rsp + 16.
pub fn debug_frame() -> Vec<u8> {
    let mut debug = vec![16, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16];
    debug.extend([0x0c, 7, 8, 0x90, 1, 0, 0]);
    debug.extend([24, 0, 0, 0, 0, 0, 0, 0]);
    debug.extend((CODE + 0x80).to_le_bytes());
    debug.extend(0x100u64.to_le_bytes());
    debug.extend([0x0e, 16, 0, 0]);
    debug
}
