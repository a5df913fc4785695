//! The files of `--output`, and their formats.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;
use crate::config::Output;
use crate::export::{self, EXPORTERS, ExportOptions};

/// The files, each with its format: the one of `--format`, or that of its extension.
pub(super) fn outputs(
    paths: Vec<PathBuf>,
    format: Option<&str>,
    options: &ExportOptions,
) -> Result<Vec<Output>, clap::Error> {
    let error = |kind, message: String| Cli::command().error(kind, message + "\n");
    let conflict = |message| error(ErrorKind::ArgumentConflict, message);
    if paths.len() > 1 && format.is_some() {
        let message = "--format allows only one --output; with several, each file's extension selects its format";
        return Err(conflict(message.to_owned()));
    }
    let named = format.and_then(export::by_name);
    let output = |path: PathBuf| {
        let format = match named.or_else(|| export::by_ending(&path)) {
            Some(format) => format,
            None => return Err(error(ErrorKind::ValueValidation, unknown(&path))),
        };
        options.check(format).map_err(|e| conflict(e.to_string()))?;
        Ok(Output {
            path,
            format,
            options: options.clone(),
        })
    };
    paths.into_iter().map(output).collect()
}

/// The message for an extension that no format has.
fn unknown(path: &Path) -> String {
    let mut text = format!(
        "no format has the extension of {}; name the format with --format, or use one of these extensions:",
        path.display()
    );
    for format in EXPORTERS {
        text += &format!("\n  .{:<16} --format {}", format.extension, format.name);
    }
    text
}
