//! Looks up names in Go's function table.

use std::rc::Rc;

use super::symtab::FoundSymbol;
use crate::elf::{Elf, ElfError, GoFunctions};

/// Looks up each of `addrs`. The result is `None` for addresses that the table does not cover, and for all addresses of
/// a file without such a table.
///
/// # Errors
/// The table is damaged.
pub fn lookup(elf: &Elf, addrs: &[u64]) -> Result<Vec<Option<FoundSymbol>>, ElfError> {
    let Some(table) = GoFunctions::read(elf)? else {
        return Ok(vec![None; addrs.len()]);
    };
    let mut last: Option<FoundSymbol> = None;
    let mut all = Vec::with_capacity(addrs.len());
    for addr in addrs {
        let found = match table.function(*addr)? {
            None => None,
            Some((_, start)) if last.as_ref().is_some_and(|f| f.start == start) => last.clone(),
            Some((index, start)) => {
                let name = table.name(index)?;
                let named = (!name.is_empty()).then(|| name.into());
                named.map(|name: Rc<[u8]>| FoundSymbol { start, name })
            }
        };
        last = found.clone().or(last);
        all.push(found);
    }
    Ok(all)
}
