//! Files that are cut, damaged or made of arbitrary text.

use proptest::prelude::*;

use crate::check_text::configuration;
use crate::effort;

use super::{FIRST_FORM, LAST_FORM, OWN_FORM};

#[test]
fn every_prefix_and_every_changed_character_is_survived() {
    for form in [FIRST_FORM, LAST_FORM, OWN_FORM] {
        for at in 0..form.len() {
            configuration(&form.as_bytes()[..at]);
            configuration(&form.as_bytes()[at..]);
            for with in ["\"", "é", "=", "[", "9", "\n"] {
                let changed = [
                    &form.as_bytes()[..at],
                    with.as_bytes(),
                    &form.as_bytes()[at + 1..],
                ];
                configuration(&changed.concat());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(effort::rounds(500)))]

    #[test]
    fn arbitrary_values_are_survived(
        lines in proptest::collection::vec(
            (
                "(http_v2|rpc_port|listen|ring|source|cors_origins|name|db|p2p|log|unit|pid|pow|keep|raw|reconnect|\\[nodes\\]|\\[\\[nodes\\]\\])",
                "(-?[0-9.e]{0,20}|\"\\PC{0,9}\"|\\{ (port|identity|bytes|age|mode|socket) = \"?[0-9a-z]{0,4}\"? \\}|\\[\\])",
            ),
            0..8,
        ),
    ) {
        let line = |(key, value): &(String, String)| match key.starts_with('[') {
            true => format!("{key}\n"),
            false => format!("{key} = {value}\n"),
        };
        let text: String = lines.iter().map(line).collect();
        configuration(text.as_bytes());
    }
}
