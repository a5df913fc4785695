//! One colour per file, the same as on the page with a light background (`src/web/js/tree/colours.js`).

use std::collections::HashMap;

use memprof_profile::tree::Table;
use memprof_profile::{Kind, Report};

/// Colour of frames that are not code, such as memory without a stack.
const NO_CODE: &str = "rgb(196,200,207)";

/// Hues of libraries, and files with a place in the palette of their own: `HUES` and `KNOWN` of `colours.js`.
const HUES: [u32; 4] = [135, 182, 216, 258];
const KNOWN: [(&str, usize); 8] = [
    ("libc.", 6),
    ("libc-", 6),
    ("ld-", 3),
    ("libpython", 1),
    ("libruby", 1),
    ("libjvm", 1),
    ("libstdc++", 7),
    ("<frozen", 4),
];

/// The colours of a report's frames, by name.
pub(super) struct Colours<'a> {
    /// The file of each function; the first one if several files have a function of this name.
    functions: HashMap<&'a str, &'a str>,
    /// For each file, whether it belongs to the program itself.
    files: HashMap<&'a str, bool>,
}

impl<'a> Colours<'a> {
    pub fn new(report: &'a Report) -> Colours<'a> {
        let (mut functions, mut files) = (HashMap::new(), HashMap::new());
        for row in Table::new([report.side()], Kind::All, true).rows {
            files.insert(row.code.file, row.code.category.0.is_own());
            if let Some(function) = row.code.function {
                functions.entry(function).or_insert(row.code.file);
            }
        }
        Colours { functions, files }
    }

    /// The colour of the frame with this name.
    pub fn for_name(&self, name: &str) -> String {
        // Code without a symbol is named after its file and offset.
        let file = match self.functions.get(name) {
            Some(file) => file,
            None => name.rsplit_once("+0x").map_or(name, |(file, _)| file),
        };
        match self.files.get(file) {
            Some(own) => of_file(file, *own),
            None => NO_CODE.to_owned(),
        }
    }
}

fn of_file(file: &str, own: bool) -> String {
    let hash = |start: u32, prime: u32| {
        let add = |hash: u32, unit: u16| (hash ^ u32::from(unit)).wrapping_mul(prime);
        file.encode_utf16().fold(start, add)
    };
    let [first, second] = [
        hash(0x811c_9dc5, 0x0100_0193),
        hash(0x9dc5_811c, 0x0100_018d),
    ];
    if own {
        return rgb(22 + first % 20, 0.88, 0.71);
    }
    let known = KNOWN.iter().find(|(start, _)| file.starts_with(start));
    let place = known.map_or(second as usize % (2 * HUES.len()), |(_, place)| *place);
    let hue = HUES[place % HUES.len()];
    match place < HUES.len() {
        true => rgb(hue, 0.50, 0.72),
        false => rgb(hue, 0.60, 0.84),
    }
}

/// Converts a hue in degrees, a saturation and a lightness to a colour.
fn rgb(hue: u32, saturation: f64, lightness: f64) -> String {
    let reach = saturation * lightness.min(1.0 - lightness);
    let part = |n: f64| {
        let k = (n + f64::from(hue) / 30.0) % 12.0;
        let value = lightness - reach * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round() as u8
    };
    format!("rgb({},{},{})", part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_css() {
        // The values that a browser computes for hsl(30 88% 71%) and hsl(200 45% 74%).
        assert_eq!(rgb(30, 0.88, 0.71), "rgb(246,181,116)");
        assert_eq!(rgb(200, 0.45, 0.74), "rgb(159,199,219)");
    }
}
