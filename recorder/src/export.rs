//! `tezos-recorder export`: what was recorded, as a file for Wireshark.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::api::export;
use crate::cli::ExportArgs;
use crate::store::{MessageQuery, Reader};

/// Writes the file. Says on stderr how many messages it has.
///
/// # Errors
/// The database cannot be read, or the file not be written. What was written remains then.
pub fn run(args: &ExportArgs) -> Result<()> {
    let reader = Reader::open(&args.db)
        .with_context(|| format!("{} is no database of the recorder", args.db.display()))?;
    let name = args.db.file_name().unwrap_or_default().to_string_lossy();
    let question = MessageQuery {
        from: args.from,
        to: args.to,
        host: args.host,
        peer_id: args.peer_id.clone(),
        ..MessageQuery::default()
    };
    let written = if args.output == Path::new("-") {
        export::write(&reader, &name, &question, io::stdout().lock())
    } else {
        File::create(&args.output).and_then(|file| export::write(&reader, &name, &question, file))
    };
    let written = written.with_context(|| format!("cannot write {}", args.output.display()))?;
    let _ = writeln!(io::stderr(), "tezos-recorder: {written} messages exported");
    Ok(())
}
