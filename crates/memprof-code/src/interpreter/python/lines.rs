//! CPython's tables of lines: `co_lnotab` until 3.9, `co_linetable` from 3.10 on.

/// The line of an instruction; `None` if the table has none, or ends before it. `at` is its distance from the first
/// one, in bytes.
pub fn line_of(version: u16, table: &[u8], first: u32, at: u32) -> Option<u32> {
    let line = match version {
        ..=9 => by_lnotab(table, first.into(), at.into()),
        10 => by_pairs(table, first.into(), at.into()),
        _ => by_locations(table, first.into(), at.into()),
    };
    u32::try_from(line?).ok().filter(|line| *line > 0)
}

/// Until 3.9: pairs of steps of the address and of the line.
fn by_lnotab(table: &[u8], mut line: i64, at: u64) -> Option<i64> {
    let mut address = 0;
    for pair in table.chunks_exact(2) {
        address += u64::from(pair[0]);
        if address > at {
            break;
        }
        line += i64::from(pair[1].cast_signed());
    }
    Some(line)
}

/// 3.10: pairs of a range's length and the step to its line; -128: it has none.
fn by_pairs(table: &[u8], mut line: i64, at: u64) -> Option<i64> {
    let mut end = 0;
    for pair in table.chunks_exact(2) {
        let step = pair[1].cast_signed();
        let has_line = step != i8::MIN;
        line += if has_line { i64::from(step) } else { 0 };
        end += u64::from(pair[0]);
        if at < end {
            return has_line.then_some(line);
        }
    }
    None
}

/// From 3.11 on: entries of a form and a length, then what the form has.
fn by_locations(table: &[u8], mut line: i64, at: u64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let mut end = 0;
    while let Some(first) = bytes.next() {
        let form = first >> 3 & 15;
        end += 2 * (u64::from(first & 7) + 1);
        let has_line = form != 15;
        let skipped = match form {
            15 => 0,
            14 => {
                line = line.checked_add(signed(&mut bytes)?)?;
                for _ in 0..3 {
                    unsigned(&mut bytes)?;
                }
                0
            }
            13 => {
                line = line.checked_add(signed(&mut bytes)?)?;
                0
            }
            10..=12 => {
                line += i64::from(form) - 10;
                2
            }
            _ => 1,
        };
        for _ in 0..skipped {
            bytes.next()?;
        }
        if at < end {
            return has_line.then_some(line);
        }
    }
    None
}

/// Six bits in each byte, the lowest first; the seventh says that more follow.
fn unsigned(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..36).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = unsigned(bytes)?;
    let size = i64::try_from(value >> 1).ok()?;
    Some(if value & 1 == 1 { -size } else { size })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(version: u16, table: &[u8], first: u32, until: u32) -> Vec<Option<u32>> {
        let at = (0..until).step_by(2);
        at.map(|at| line_of(version, table, first, at)).collect()
    }

    #[test]
    fn lnotab_goes_by_steps() {
        // Bytes 0-1 in line 5, 2-5 in line 6, from 6 on in line 4.
        let table = [2, 1, 4, 0xfe];
        let wanted = [5, 6, 6, 4, 4].map(Some);
        assert_eq!(lines(8, &table, 5, 10), wanted);
        assert_eq!(line_of(9, &[], 7, 40), Some(7));
    }

    #[test]
    fn pairs_are_ranges() {
        // Two bytes in line 5, two without a line, four in line 6.
        let table = [2, 0, 2, 0x80, 4, 1];
        assert_eq!(
            lines(10, &table, 5, 10),
            [Some(5), None, Some(6), Some(6), None]
        );
    }

    #[test]
    fn locations_have_every_form() {
        let entry = |form: u8, units: u8| 0x80 | form << 3 | (units - 1);
        let mut table = vec![entry(0, 1), 0x12]; // short: the same line
        table.extend([entry(11, 2), 1, 2]); // one line on
        table.extend([entry(13, 1), 3]); // no column: -1
        table.extend([entry(14, 1), 0x40 | 0x28, 1, 0, 0, 0]); // long: 6 bits, then 1: (64 + 40) / 2 = 52
        table.extend([entry(15, 1)]); // no line
        let wanted = [Some(5), Some(6), Some(6), Some(5), Some(57), None, None];
        assert_eq!(lines(11, &table, 5, 14), wanted);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(version in 8u16..14, table: Vec<u8>, first: u32, at: u32) {
            let _ = line_of(version, &table, first, at);
        }
    }
}
