//! Content of the lists of processes and control groups.

use super::crowd::{POD, THREE, listed, report_of, shown, who};
use super::*;
use memprof_profile::{Ended, EndedProcess};
use memprof_sys::ids::Pid;

#[test]
fn processes_on_a_usual_terminal() {
    let state = shown((80, 24), &THREE, "P");
    let wanted = [
        "memprof  nginx (pid 7) and 2 more processes  00:00:00 UTC",
        "resident 7,000 KiB = kernel   anon 7,000  shmem 0",
        "page cache 3,564 KiB   file maps 0  swapped 0  hugetlb 0  page tables 0",
        "stacks: complete 100.0 %   losses: none",
        "resident over 1 reports: 7,000 to 7,000 KiB",
        "",
        "                                                                               ▁",
        "        KiB     %        anon        file     pid  processes by size",
        "     10,564 100.0       7,000           0       3  processes",
        "      5,000  47.3       2,000           0       8  redis-server     0123456789ab",
        "      4,000  37.9       4,000           0       7  nginx            /web",
        "      1,500  14.2       1,000           0      30  worker           /web/below",
        "         64   0.6           0           0          [of ended processes]",
    ];
    assert_eq!(text(&state)[..wanted.len()], wanted);
    let text = text(&state);
    let selected = format!("redis-server (pid 8)  0123456789ab  pod {POD}  /pods/redis");
    assert_eq!(text[22], format!("…{}", &selected[selected.len() - 79..]));
    let keys = "q end  Tab groups  Enter show  Esc back  / filter  n kind  s sort  ? help";
    assert_eq!(text[23], keys);
}

#[test]
fn control_groups_and_the_way_back() {
    let mut state = shown((100, 24), &THREE, "P");
    press(&mut state, KeyCode::Tab);
    shows(&state, &["   procs  groups by size", "       3  groups"]);
    let wanted = [
        "pod b15e0b8f-6d25-4d1f-",
        "/web",
        "/web/below",
        "[in no known control group]",
    ];
    assert_eq!(who(&state), wanted);
    // One row is for processes whose group is unknown and for ended processes.
    let mut unknown = THREE;
    unknown[0].2 = "";
    feed(&mut state, Input::Report(report_of(&unknown, 64)));
    shows(&state, &["      4,064  38.5"]);
    press(&mut state, KeyCode::Tab);
    shows(&state, &["processes by size"]);
    press(&mut state, KeyCode::Esc);
    shows(&state, &["functions by self", "P processes"]);
}

/// For every kind, with ended processes.
#[test]
fn the_rows_add_up_to_the_whole() {
    let figure = |row: &String, column: usize| {
        let figure = row.split_whitespace().nth(column).unwrap();
        figure.replace(',', "").parse::<u64>().unwrap()
    };
    let mut state = shown((120, 24), &THREE, "P");
    for _ in 0..8 {
        for _ in 0..2 {
            let list = state.list().unwrap();
            assert_eq!(list.sum, list.whole);
            let rows = listed(&state);
            // The chosen kind, and the kind in the first column beside it.
            for column in [0, 2] {
                let sum: u64 = rows[1..].iter().map(|row| figure(row, column)).sum();
                assert_eq!(figure(&rows[0], column), sum, "{rows:#?}");
            }
            press(&mut state, KeyCode::Tab);
        }
        types(&mut state, "n");
    }
    let cache = shown((120, 24), &THREE, "nnnnP");
    shows(&cache, &["processes by size, cache only"]);
    assert_eq!(figure(&listed(&cache)[0], 0), 3564);
}

#[test]
fn a_single_process_is_one_row() {
    let mut state = shown((80, 24), &THREE[..1], "P");
    let wanted = [
        "      4,064 100.0       4,000           0       1  process",
        "      4,064 100.0       4,000           0       7  nginx",
    ];
    assert_eq!(listed(&state), wanted);
    press(&mut state, KeyCode::Tab);
    let wanted = [
        "      4,064 100.0       4,000           0       0  groups",
        "      4,064 100.0       4,000           0          [in no known control group]",
    ];
    assert_eq!(listed(&state), wanted);
    press(&mut state, KeyCode::Enter);
    shows(&state, &["these bytes are of no process that runs"]);
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Enter);
    shows(
        &state,
        &[
            "nginx (pid 7)  00:00:00 UTC",
            "      4,000  98.4        4,000  98.4  grow",
        ],
    );
}

#[test]
fn ended_processes_are_counted_beside_the_sum() {
    let mut report = Report::clone(&report_of(&THREE, 64));
    let ended = EndedProcess {
        pid: Pid(5),
        comm: "gone".to_owned(),
        container: None,
        total: kib(9, 0).into(),
        scanned: std::time::UNIX_EPOCH,
        peak: None,
        ended: std::time::UNIX_EPOCH,
    };
    Arc::make_mut(&mut report.profile).ended = Ended {
        processes: vec![ended.clone(), ended],
        unscanned: 1,
    };
    let mut state = of_functions(false, (80, 24));
    feed(&mut state, Input::Report(Arc::new(report)));
    types(&mut state, "P");
    assert_eq!(
        listed(&state)[0],
        "     10,564 100.0       7,000           0       3  processes (2 more ended)"
    );
    press(&mut state, KeyCode::Tab);
    assert!(listed(&state)[0].ends_with("3  groups (2 processes ended)"));
}

#[test]
fn narrow_screens_show_one_figure_and_the_name() {
    let mut state = shown((30, 24), &THREE, "P");
    let wanted = [
        "     10,564  3 processes",
        "      5,000  8 redis-server",
        "      4,000  7 nginx",
        "      1,500  30 worker",
    ];
    assert_eq!(listed(&state)[..4], wanted);
    press(&mut state, KeyCode::Tab);
    assert_eq!(listed(&state)[2], "      4,000  /web");
}

/// The end of a path identifies the group; a container's id comes first.
#[test]
fn long_paths_are_cut_at_their_beginning() {
    let mut three = THREE;
    three[0].2 = "/system.slice/a-very-long-name-of-a.slice/nginx.service";
    let mut state = shown((80, 24), &three, "P");
    let ends = |state: &UiState, what: &str| {
        let rows = listed(state);
        assert!(rows.iter().any(|row| row.ends_with(what)), "{rows:#?}");
    };
    ends(&state, "nginx            …inx.service");
    ends(&state, "redis-server     0123456789ab");
    press(&mut state, KeyCode::Tab);
    ends(&state, "1  …ame-of-a.slice/nginx.service");
    // This also works on a screen without any space for it.
    state.update(Input::Resize(12, 10));
    drawn(&state);
}

/// A wide screen has more figures: the kinds that are not chosen.
#[test]
fn wide_screens_show_more_kinds() {
    let mut state = shown((140, 24), &THREE, "P");
    let all = "        KiB     %        anon        file       shmem        swap       cache     hugetlb     pid  ";
    shows(&state, &[all]);
    types(&mut state, "nn");
    let others = "        KiB     %        file       shmem        swap       cache     hugetlb     pid  processes by size, anon only";
    shows(&state, &[others]);
}

/// Only models that are shown are built.
#[test]
fn while_a_list_is_shown_no_trees_are_made() {
    let mut state = shown((80, 24), &THREE, "P");
    state.update(Input::Report(report_of(&THREE, 0)));
    assert!(state.job.is_none());
    types(&mut state, "P");
    assert_eq!(state.functions.len(), 3);
}
