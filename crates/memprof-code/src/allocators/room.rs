//! Finds executable memory in a program that no instruction of it uses.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::elf::{SHT_SYMTAB, STT_FUNC};

use crate::elf::{Elf, u64_at};
use memprof_sys::target_file::ReadAt;

/// Size of a page, in bytes.
const PAGE: u64 = 4096;
/// Alignment of functions, in bytes.
const ALIGNMENT: u64 = 16;

/// The address, in the file's own addresses, of so many bytes of a program's executable memory that are not the program's: after
/// its code in the last page, or between two functions. `None` if there are none, or the file cannot be read.
pub fn unused_code(executable: &dyn ReadAt, bytes: u64) -> Option<u64> {
    let elf = Elf::read(executable).ok()?;
    let mut ends = elf
        .code_segments()
        .map(|segment| segment.addr.saturating_add(segment.size_in_memory))
        .map(|end| end.next_multiple_of(8));
    ends.find(|end| end.next_multiple_of(PAGE) - end >= bytes)
        .or_else(|| padding(&elf, bytes))
}

/// Instructions without effect between the end of a function and the beginning of the next one.
fn padding(elf: &Elf<'_>, bytes: u64) -> Option<u64> {
    let table = elf.section_of_kind(SHT_SYMTAB)?;
    let mut functions = Vec::new();
    elf.for_each_symbol(table, |symbol| {
        if symbol[4] & 0xf == STT_FUNC.0 {
            functions.push((u64_at(symbol, 8), u64_at(symbol, 16)));
        }
        Ok(())
    })
    .ok()?;
    functions.sort_unstable();
    // Aliases have one address, and may have different sizes.
    functions.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        kept.1 = if same { kept.1.max(next.1) } else { kept.1 };
        same
    });
    functions.windows(2).find_map(|pair| {
        let (start, size) = pair[0];
        let (end, next) = (start.checked_add(size)?, pair[1].0);
        let gap = next.checked_sub(end)?;
        let is_padding = size > 0 && (bytes..ALIGNMENT).contains(&gap) && next % ALIGNMENT == 0;
        (is_padding && does_nothing(elf, end, gap)).then_some(end)
    })
}

fn does_nothing(elf: &Elf<'_>, at: u64, bytes: u64) -> bool {
    let Some((segment, inside)) = elf.loaded_at(at) else {
        return false;
    };
    let mut code = [0; ALIGNMENT as usize];
    let code = &mut code[..bytes as usize];
    let is_read = segment.code() && elf.read_at(code, segment.offset + inside).is_ok();
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    is_read
        && decoder
            .iter()
            .all(|one| matches!(one.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
}
