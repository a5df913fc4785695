//! Pluses, units of times, ids.

use super::*;

#[test]
fn a_plus_with_which_a_word_begins_is_itself() {
    for (text, wanted) in [
        ("+ip%20+address", "+ip +address"),
        ("%2Bip+%2Baddress", "+ip +address"),
        ("peer+-branch", "peer -branch"),
        ("peer%20-branch", "peer -branch"),
        ("%22a+b%22", "\"a b\""),
        ("+ä+ö", "+ä ö"),
        ("", ""),
        ("%2", "%2"),
    ] {
        let query = Query::read(&format!("query={text}"), &["query"], Unknown::Refused);
        let query = query.unwrap();
        let found = query.text(&["query"]).unwrap_or_default();
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn the_size_of_a_time_tells_its_unit() {
    let second = 1_626_264_321;
    for (number, first, last) in [
        (
            second,
            second * 1_000_000_000,
            second * 1_000_000_000 + 999_999_999,
        ),
        (
            second * 1000 + 5,
            second * 1_000_000_000 + 5_000_000,
            second * 1_000_000_000 + 5_999_999,
        ),
        (
            second * 1_000_000,
            second * 1_000_000_000,
            second * 1_000_000_000 + 999,
        ),
        (
            second * 1_000_000_000,
            second * 1_000_000_000,
            second * 1_000_000_000,
        ),
        (u64::MAX, u64::MAX, u64::MAX),
        (99_999_999_999, u64::MAX, u64::MAX),
    ] {
        let found = Moment::of_number(number);
        assert_eq!((found.first.0, found.last.0), (first, last), "{number}");
    }
}

#[test]
fn ids_of_connections() {
    for (text, wanted) in [
        ("1617005682.953928051", Some(1_617_005_682_953_928_051)),
        ("1617005682.000000005", Some(1_617_005_682_000_000_005)),
        ("1617005682.5", Some(1_617_005_682_000_000_005)),
        ("1617005682953928051", Some(1_617_005_682_953_928_051)),
        ("1617005682.1000000000", None),
        ("99999999999.0", None),
        ("1.", None),
        (".1", None),
        ("1.+1", None),
        ("", None),
    ] {
        assert_eq!(connection_id(text), wanted.map(ConnectionId), "{text}");
    }
    assert_eq!(seconds(ConnectionId(12_000_000_005)), "12.000000005");
}
