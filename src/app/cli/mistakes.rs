//! Suggestions for unknown words on the command line.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Maximum number of letters to change, add, remove or swap for a name to be similar.
const SIMILAR: usize = 2;

/// Commands that have a process as their target.
const OF_A_PROCESS: [&str; 5] = ["top", "heap", "maps", "attach-heap", "advise"];

/// Adds tips to the error about an unknown word: how to profile the process, the program or the file that it may be, or which name is
/// similar.
pub fn explained(mut e: clap::Error, all: &Command, args: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(unknown)) = e.get(ContextKind::InvalidArg).cloned() else {
        return e;
    };
    if e.kind() != ErrorKind::UnknownArgument {
        return e;
    }
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let first = words.get(1).map_or("", |word| word);
    let command = all.find_subcommand(first);
    let tips = match (unknown.strip_prefix("--"), command) {
        (Some(option), command) => similar_option(command.unwrap_or(all), option),
        (None, None) => {
            let at = words.iter().position(|word| *word == unknown);
            let rest = words.get(at.unwrap_or(words.len())..).unwrap_or_default();
            meanings(all, &unknown, &rest.join(" "), is_program(&unknown))
        }
        (None, Some(command)) if OF_A_PROCESS.contains(&command.get_name()) => {
            let name = command.get_name();
            let takes_command = command.get_arguments().any(|arg| arg.is_last_set());
            meanings(all, &unknown, &unknown, is_program(&unknown))
                .into_iter()
                .filter(|tip| takes_command || !tip.contains("memprof -- "))
                .map(|tip| tip.replace("memprof --", &format!("memprof {name} --")))
                .collect()
        }
        _ => Vec::new(),
    };
    if !tips.is_empty() {
        let tips = tips.into_iter().map(StyledStr::from).collect();
        e.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    e
}

/// The option of a command whose name is most similar.
fn similar_option(command: &Command, name: &str) -> Vec<String> {
    let options = || command.get_arguments().filter_map(|arg| arg.get_long());
    if name == "port" && options().any(|option| option == "listen") {
        return vec!["to serve at another port: --listen 127.0.0.1:PORT".to_owned()];
    }
    let known = nearest(options(), name);
    known
        .map(|known| format!("a similar option exists: --{known}"))
        .into_iter()
        .collect()
}

fn nearest<'a>(known: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    let distances = known.map(|known| (strsim::osa_distance(known, name), known));
    let near = distances.filter(|(distance, known)| *distance <= SIMILAR.min(known.len() / 2));
    near.min().map(|(_, known)| known)
}

/// Suggested command lines for a word that is not an option. `rest` is the word with the arguments after it.
fn meanings(all: &Command, word: &str, rest: &str, is_program: bool) -> Vec<String> {
    if word.parse::<u32>().is_ok() {
        return vec![format!("to profile process {word}: memprof --pid {word}")];
    }
    if word.ends_with(".memprof.json") || word.ends_with(".memprof.db") {
        return vec![format!(
            "to open a saved profile or a recording: memprof open {word}"
        )];
    }
    let start = format!("to start a program: memprof -- {rest}");
    if is_program {
        return vec![start];
    }
    let commands = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    if let Some(known) = nearest(commands.map(Command::get_name), word) {
        return vec![format!("a similar command exists: memprof {known}")];
    }
    let named = format!("to profile the process with this name: memprof --comm {word}");
    vec![named, start]
}

/// Whether a shell finds a program by this name.
fn is_program(word: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    word.contains('/') || std::env::split_paths(&path).any(|dir| is_file(&dir, word))
}

fn is_file(dir: &Path, name: &str) -> bool {
    dir.join(name).is_file()
}

#[cfg(test)]
mod tests {
    use crate::app::cli::parse_from;

    fn said(line: &str) -> String {
        let words = line.split(' ').map(Into::into);
        let Err(e) = parse_from(words) else {
            panic!("{line}: accepted")
        };
        assert_eq!(e.exit_code(), 2, "{line}");
        e.to_string()
    }

    #[test]
    fn what_was_meant_is_told() {
        for (line, tip) in [
            ("memprof ./job", "to start a program: memprof -- ./job"),
            (
                "memprof ./job --fast x",
                "to start a program: memprof -- ./job --fast x",
            ),
            (
                "memprof sh job.sh",
                "to start a program: memprof -- sh job.sh",
            ),
            (
                "memprof 1234",
                "to profile process 1234: memprof --pid 1234",
            ),
            ("memprof haep", "a similar command exists: memprof heap"),
            (
                "memprof recrod x.db",
                "a similar command exists: memprof record",
            ),
            ("memprof redis-of-mine", "memprof --comm redis-of-mine"),
            ("memprof x.memprof.json", "memprof open x.memprof.json"),
            ("memprof top 1234", "memprof top --pid 1234"),
            ("memprof top ./job", "memprof top -- ./job"),
            ("memprof heap 1234", "memprof heap --pid 1234"),
            ("memprof heap ./job", "memprof heap -- ./job"),
            ("memprof maps 1234", "memprof maps --pid 1234"),
            ("memprof --pdi 1", "a similar option exists: --pid"),
            ("memprof --port 1", "another port: --listen 127.0.0.1:PORT"),
            (
                "memprof --pid 1 --outptu x",
                "a similar option exists: --output",
            ),
            ("memprof maps --pdi 1", "a similar option exists: --pid"),
        ] {
            let said = said(line);
            assert!(said.contains(tip), "{line}: {said}");
        }
        // Nothing is similar.
        let said = said("memprof --zzzzzz");
        assert!(!said.contains("similar"), "{said}");
    }
}
