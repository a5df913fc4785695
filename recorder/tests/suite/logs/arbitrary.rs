//! Lines that are cut, damaged or made of arbitrary bytes.

use proptest::prelude::*;

use crate::check_text::log_line;
use crate::common::{each, text as string, vectors};
use crate::effort;

#[test]
fn every_prefix_and_every_foreign_character_is_survived() {
    let more = [
        "Jan 02 03:04:05.123: x",
        "<30>Jan  2 03:04:05 host tag[1]: x",
        "<30>1 - - - - - [a b=\"c\\\"\"] \x1b[1;31mx",
        "<30>2026-01-02T03:04:05Z h t: <004> 2026-01-02T03:04:05.123-00:00 [a] x",
    ];
    let examples = each(&vectors()["logs"]).map(|e| string(&e["datagram"]));
    for line in examples.chain(more) {
        let bytes = line.as_bytes();
        for at in 0..=bytes.len() {
            log_line(&bytes[..at]);
            log_line(&bytes[at..]);
            for foreign in ["é", "│", "🦀", "\u{feff}", "\x1b", "\x1b[", "\0", "\n"] {
                let (before, after) = bytes.split_at(at);
                log_line(&[before, foreign.as_bytes(), after].concat());
                let rest = after.get(foreign.len()..).unwrap_or_default();
                log_line(&[before, foreign.as_bytes(), rest].concat());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(effort::rounds(2000)))]

    #[test]
    fn arbitrary_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        log_line(&bytes);
    }

    #[test]
    fn arbitrary_texts_in_headers_are_survived(
        priority in 0..1200u16,
        header in "(1 )?[-A-Za-z0-9:.+ \\[\\]\"=\\\\]{0,60}",
        text in "(\\PC{0,80}|[<>{}\\[\\]:. 0-9A-Za-z│\x1b]{0,80})",
    ) {
        log_line(format!("<{priority}>{header} {text}").as_bytes());
    }
}
