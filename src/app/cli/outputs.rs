//! The files of `--output` and their formats.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;
use crate::app::config::{Output, OutputMoment};
use crate::export::{ExportOptions, Exporter};
use crate::http::exporters::{self, EXPORTERS};
use memprof_profile::Kind;

/// The output files, each with its format and kind. `--format` sets the format, otherwise the file's extension. A
/// single entry of `kinds` applies to all files; several entries apply to the files in order. If a single kind is given
/// and only some formats support a kind, files in the other formats contain every kind.
pub(super) fn outputs(
    paths: Vec<PathBuf>,
    format: Option<&str>,
    kinds: &[Kind],
    options: &ExportOptions,
) -> Result<Vec<Output>, clap::Error> {
    let conflict =
        |message: String| Cli::command().error(ErrorKind::ArgumentConflict, message + "\n");
    if kinds.len() > 1 && kinds.len() != paths.len() {
        return Err(conflict(format!(
            "there are {} --kind and {} --output: give one --kind for all files, or one for each, in their order",
            kinds.len(),
            paths.len()
        )));
    }
    if paths.len() > 1 && format.is_some() {
        let message = "--format allows only one --output; with several, each file's extension selects its format";
        return Err(conflict(message.to_owned()));
    }
    let format_of = |path: &PathBuf| format_of(path, format, EXPORTERS[0].name);
    let formats: Vec<_> = paths.iter().map(format_of).collect::<Result<_, _>>()?;
    let of_all = kinds.first().filter(|_| kinds.len() == 1);
    let some_can = formats.iter().any(|format| format.supports.kind);
    let output = |(at, (path, format)): (usize, (PathBuf, &'static Exporter))| {
        let kind = match of_all {
            Some(_) if some_can && !format.supports.kind => Kind::All,
            Some(kind) => *kind,
            None => *kinds.get(at).unwrap_or(&options.kind),
        };
        let options = ExportOptions {
            kind,
            ..options.clone()
        };
        options.check(format).map_err(|e| conflict(e.to_string()))?;
        Ok(Output {
            path,
            format,
            options,
            at: None,
        })
    };
    let outputs = paths.into_iter().zip(formats).enumerate();
    outputs.map(output).collect()
}

/// Sets the moments of outputs (`--at`): one moment for all, or one for each, in their order.
pub(super) fn set_moments(
    outputs: &mut [Output],
    moments: &[OutputMoment],
) -> Result<(), clap::Error> {
    if moments.len() > 1 && moments.len() != outputs.len() {
        let message = format!(
            "there are {} --at and {} --output: give one --at for all files, or one for each, in their order\n",
            moments.len(),
            outputs.len()
        );
        return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
    }
    for (at, output) in outputs.iter_mut().enumerate() {
        output.at = moments.get(at).or(moments.first()).copied();
    }
    Ok(())
}

/// The file of `--on-oom`: a saved profile, unless its extension selects another format.
pub(super) fn file_on_oom(path: PathBuf) -> Result<Output, clap::Error> {
    if path.as_os_str() == "-" {
        let message = "--on-oom needs a file: standard output may be the command's\n";
        return Err(Cli::command().error(ErrorKind::ValueValidation, message));
    }
    Ok(Output {
        format: format_of(&path, None, "profile")?,
        options: ExportOptions::default(),
        at: None,
        path,
    })
}

/// The kinds with these names, which clap has validated.
pub(super) fn kinds_of(names: &[String]) -> Vec<Kind> {
    names
        .iter()
        .filter_map(|name| Kind::by_name(name))
        .collect()
}

/// The format of a file: `--format`, otherwise the file's extension, otherwise `default` for a file without an
/// extension.
pub(super) fn format_of(
    path: &Path,
    format: Option<&str>,
    default: &str,
) -> Result<&'static Exporter, clap::Error> {
    let found = match format {
        Some(name) => exporters::by_name(name),
        None if path.extension().is_none() => exporters::by_name(default),
        None => exporters::by_extension(path),
    };
    found.ok_or_else(|| Cli::command().error(ErrorKind::ValueValidation, unknown(path) + "\n"))
}

/// The error message for an extension that belongs to no format.
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
