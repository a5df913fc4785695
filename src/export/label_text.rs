//! Printable text of labels.

use memprof_profile::tree::{Code, Label};
use memprof_sys::text::printable;

/// The text of a label. Each name is made [`printable`] separately, so that a long name does not hide the file.
pub(super) fn readable(label: &Label<'_>) -> String {
    match label {
        Label::Code(code) => {
            let (function, file) = (code.function.map(printable), printable(code.file));
            let code = Code {
                function: function.as_deref(),
                file: &file,
                ..*code
            };
            code.to_string()
        }
        other => printable(&other.to_string()).into_owned(),
    }
}
