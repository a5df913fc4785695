//! The views for people, and moments by name.

use std::time::Duration;

use rusqlite::Connection;

use super::made::World;
use super::recorder;
use crate::growth::SERIES;
use crate::{At, Recording, RecordingError, cut_off};
use memprof_profile::Kind;

#[test]
fn the_views_have_the_figures_of_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut world = World::new(2);
    let mut recorder = recorder(&path);
    let reports: Vec<_> = (0..60).map(|_| world.report(1000)).collect();
    for report in &reports {
        recorder.record(report).unwrap();
    }
    recorder.finish().unwrap();
    let db = Connection::open(&path).unwrap();
    for (number, report) in (1i64..).zip(&reports).step_by(7) {
        for kind in [Kind::Anon, Kind::Cache] {
            let sql =
                "SELECT total(bytes) FROM state_at WHERE moment = ?1 AND process = 0 AND kind = ?2";
            let sum: f64 = db
                .query_row(sql, (number, kind.name()), |row| row.get(0))
                .unwrap();
            assert_eq!(sum as u64, kind.figure(&report.profile.total));
        }
        let sql = "SELECT total FROM timeline WHERE moment = ?1";
        let total: i64 = db.query_row(sql, [number], |row| row.get(0)).unwrap();
        assert_eq!(total as u64, Kind::All.figure(&report.profile.total));
    }
    let sql = "SELECT count(*) FROM function_series WHERE function LIKE '%::f%' AND bytes > 0";
    assert!(db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() > 10);
    let sql = "SELECT count(*) FROM function_at WHERE moment = 60 AND kind = 'anon'";
    assert!(db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() > 3);
}

/// The questions of the documentation, each with an answer.
#[test]
fn the_documented_questions_have_answers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut world = World::new(2);
    let mut recorder = recorder(&path);
    let reports: Vec<_> = (0..60).map(|_| world.report(1000)).collect();
    for report in &reports {
        recorder.record(report).unwrap();
    }
    recorder.finish().unwrap();
    let db = Connection::open(&path).unwrap();
    let text = include_str!("../../../../docs/recording.md");
    let questions = text.split("```sql\n").skip(1);
    let questions = questions.map(|rest| rest.split("```").next().unwrap());
    // Names and sizes that are in this recording.
    let questions = questions.map(|sql| {
        sql.replace("%grow%", "%::f%")
            .replace("> 1024 * 1024 * 1024", "> 0")
    });
    let questions: Vec<String> = questions.collect();
    assert_eq!(questions.len(), 5);
    let rows = |sql: &str| {
        let mut rows = db.prepare(sql).unwrap();
        let rows = rows.query_map([], |row| row.get::<_, rusqlite::types::Value>(0));
        rows.unwrap().map(Result::unwrap).count()
    };
    for sql in &questions {
        assert!(rows(sql) > 0, "{sql}");
    }
    let highest = reports
        .iter()
        .map(|report| Kind::All.figure(&report.profile.total));
    let kib: u64 = db
        .query_row(&questions[0], [], |row| row.get::<_, i64>(1))
        .unwrap() as u64;
    assert_eq!(kib, highest.max().unwrap() / 1024);
    // What all functions gained is what the sum gained.
    let anon = |at: usize| Kind::Anon.figure(&reports[at].profile.total) as i64;
    let gains = questions[3]
        .replace("ORDER BY kib DESC LIMIT 5", "")
        .replace("/ 1024", "");
    let gained = format!(
        "SELECT sum(kib) FROM ({})",
        gains.trim_end().trim_end_matches(';')
    );
    let gained: i64 = db.query_row(&gained, [], |row| row.get(0)).unwrap();
    assert_eq!(gained, anon(59) - anon(0));
}

/// Otherwise what takes milliseconds would take seconds.
#[test]
fn figures_are_looked_up_by_moment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    recorder(&path).finish().unwrap();
    let db = Connection::open(&path).unwrap();
    for (sql, of_one) in [
        (SERIES, false),
        ("SELECT bytes FROM state_at WHERE moment = 7", true),
        (
            "SELECT bytes FROM function_at WHERE moment = (SELECT max(moment) FROM timeline)",
            true,
        ),
    ] {
        let mut plan = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = vec![rusqlite::types::Null; plan.parameter_count()];
        let lines = plan.query_map(rusqlite::params_from_iter(unbound), |row| row.get("detail"));
        let lines: Vec<String> = lines.unwrap().map(Result::unwrap).collect();
        let found = |what: &str| lines.iter().any(|line| line.starts_with(what));
        let rows = found("SEARCH v USING PRIMARY KEY (moment>? AND moment<?)");
        let moment = !of_one || found("SEARCH m USING INTEGER PRIMARY KEY (rowid=?)");
        assert!(rows && moment && !found("SCAN m"), "{sql}: {lines:#?}");
    }
}

#[test]
fn moments_have_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut world = World::new(2);
    let mut recorder = recorder(&path);
    let totals: Vec<u64> = (0..100)
        .map(|_| {
            let report = world.report(10_000);
            recorder.record(&report).unwrap();
            report.profile.total.usage.value()
        })
        .collect();
    recorder.finish().unwrap();
    let recording = Recording::open(&path).unwrap();
    let find = |name: &str| recording.find(&name.parse().unwrap());
    let id = |name: &str| find(name).unwrap().id;
    assert_eq!(id("end"), 100);
    assert_eq!(id("-0s"), 100);
    assert_eq!(id("-1m"), 94);
    assert_eq!(id("-65s"), 93);
    assert_eq!(find("peak").unwrap().total, *totals.iter().max().unwrap());
    // The clock of the reports begins at 2023-11-14T22:13:20Z.
    assert_eq!(id("2023-11-14T22:20:00Z"), 40);
    assert_eq!(id("2023-11-14T23:20:00+01:00"), 40);
    for (name, wanted) in [
        ("-1h", "begins at 2023-11-14T22:13:30Z"),
        ("2023-11-14T22:00:00Z", "begins at"),
        ("2023-11-14T23:00:00Z", "ends at 2023-11-14T22:30:00Z"),
        ("2023-99-14T23:00:00Z", "not a date"),
    ] {
        let error = find(name).unwrap_err();
        assert!(matches!(error, RecordingError::NoMoment(_)));
        assert!(error.to_string().contains(wanted), "{name}: {error}");
    }
    // A time of day is by the clock here, so it is found by the time that the clock shows.
    let db = Connection::open_in_memory().unwrap();
    let sql = "SELECT time(1700000400, 'unixepoch', 'localtime')";
    let clock: String = db.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(id(&clock), 40);
}

#[test]
fn a_file_and_its_moment_are_separated() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("r.db"), "x").unwrap();
    std::fs::write(path("a@end"), "x").unwrap();
    let cut = |name: &str| cut_off(&path(name));
    assert_eq!(cut("r.db@peak"), Ok(Some((path("r.db"), At::Peak))));
    let ago = At::Ago(Duration::from_secs(600));
    assert_eq!(cut("r.db@-10m"), Ok(Some((path("r.db"), ago))));
    assert_eq!(
        cut("r.db@14:05"),
        Ok(Some((path("r.db"), At::Clock("14:05".into()))))
    );
    assert_eq!(cut("a@end@end"), Ok(Some((path("a@end"), At::End))));
    // A path that contains the sign, and files that are not there.
    for name in ["r.db", "a@end", "none", "none@end"] {
        assert_eq!(cut(name), Ok(None));
    }
    for name in [
        "r.db@",
        "r.db@25:00",
        "r.db@14:5",
        "r.db@-m",
        "r.db@-1e3s",
        "r.db@top",
    ] {
        assert!(cut(name).unwrap_err().contains("names no moment"), "{name}");
    }
}
