//! Values with units.

use std::time::Duration;

use tezos_recorder::config::values;

#[test]
fn sizes_ages_and_modes_have_units() {
    for (text, size) in [
        ("0", Some(0)),
        ("7B", Some(7)),
        ("3KiB", Some(3072)),
        ("1TiB", Some(1 << 40)),
        ("16777216TiB", None),
        ("-1", None),
        ("+1", None),
        ("", None),
        ("KiB", None),
        ("1 KiB", None),
        ("1kb", None),
    ] {
        assert_eq!(values::size(text).ok(), size, "{text}");
    }
    for (text, seconds) in [
        ("5s", Some(5)),
        ("2m", Some(120)),
        ("1d", Some(86_400)),
        ("0s", None),
        ("5", None),
        ("999999999999999999d", None),
    ] {
        assert_eq!(
            values::age(text).ok(),
            seconds.map(Duration::from_secs),
            "{text}"
        );
    }
    for (text, mode) in [
        ("0660", Some(0o660)),
        ("7", Some(7)),
        ("1000", None),
        ("8", None),
        ("+7", None),
        ("", None),
    ] {
        assert_eq!(values::mode(text).ok(), mode, "{text}");
    }
}
