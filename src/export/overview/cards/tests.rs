//! The sentences of the cards.

use super::*;
use memprof_profile::Kind;

fn table(shape: Option<&'static str>, values: &[u64]) -> GrowthTable {
    let total = GrowthRow {
        name: "total".to_owned(),
        place: None,
        shape,
        per_hour: 0.0,
        error: 0.0,
        share: None,
        since: 0,
        rises: 0.0,
        values: values.to_vec(),
    };
    GrowthTable {
        from: Some(0),
        to: Some(600_000),
        total: Some(total),
        ..GrowthTable::of_nothing(Kind::All)
    }
}

#[test]
fn growth_that_has_stopped_is_said_to_have() {
    let grew = [10 << 20, 80 << 20];
    let expected =
        "In the last 10 min, memory grew from 10.0 MiB to 80.0 MiB and has stopped growing.";
    assert_eq!(trend(&table(Some("stopped"), &grew), None), expected);
    assert_eq!(trend(&table(Some("jump"), &grew), None), expected);
    let uncertain = trend(&table(None, &grew), None);
    assert!(
        uncertain.starts_with("Nothing certainly grows"),
        "{uncertain}"
    );
}
