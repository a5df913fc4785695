//! A list of processes or control groups: rows, sums, filter, sort order.
//!
//! Rows are rebuilt when a report arrives or a setting changes; drawing reads only the visible rows.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::list_position::ListPosition;
use super::model::Pair;
use super::view::View;
use memprof_profile::tree::Search;
use memprof_profile::{Amounts, Kind, Profile, Subset};
use memprof_sys::process::Container;

/// Number of characters shown of a container id, as container runtimes show it.
const SHORT_ID: usize = 12;

/// The sort column of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Column {
    /// The chosen kind; with a mark, its change.
    #[default]
    Chosen,
    /// Another kind.
    Kind(Kind),
    /// The process id, or the number of processes.
    Number,
    /// The process's name.
    Name,
    /// Container, pod and control group.
    Place,
}

/// Filter and sort order of both lists.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) sort: Column,
    pub(super) reversed: bool,
    pub(super) filter: String,
}

/// Figures now and at the mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AmountsNowAndThen {
    pub(super) now: Amounts,
    pub(super) then: Amounts,
}

impl AmountsNowAndThen {
    fn add(&mut self, other: AmountsNowAndThen) {
        self.now += other.now;
        self.then += other.then;
    }

    fn take_out(&mut self, part: AmountsNowAndThen) {
        self.now -= part.now;
        self.then -= part.then;
    }

    pub(super) fn pair(&self, kind: Kind) -> Pair {
        Pair {
            now: kind.figure(&self.now),
            then: kind.figure(&self.then),
        }
    }
}

/// A process or a control group.
#[derive(Debug, Default)]
pub(super) struct ListRow {
    /// The process or group; `None` in the row for memory that is in no other row.
    pub(super) subset: Option<Subset>,
    /// The process id, or the number of processes directly in the group.
    pub(super) number: usize,
    /// The process's name; empty for groups.
    pub(super) name: String,
    /// Container, pod and control group.
    pub(super) place: String,
    pub(super) figures: AmountsNowAndThen,
    /// Whether the process or group existed at the mark but is gone now.
    pub(super) is_gone: bool,
}

impl ListRow {
    /// The title in the header.
    pub(super) fn title(&self) -> String {
        match &self.subset {
            Some(Subset::Group(group)) => format!("control group {group} and below"),
            _ => format!("{} (pid {})", self.name, self.number),
        }
    }
}

/// A list: the rows that match the filter, sorted.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) rows: Vec<ListRow>,
    /// The sum of the rows; equals `whole` without a filter.
    pub(super) sum: AmountsNowAndThen,
    /// The sum of all rows, regardless of the filter.
    pub(super) whole: AmountsNowAndThen,
    /// Current number of processes or groups.
    pub(super) all: usize,
    /// Number of them that match the filter.
    pub(super) listed: usize,
    pub(super) place: ListPosition,
}

/// A candidate for a row.
struct Entry<'a> {
    subset: Subset,
    number: usize,
    name: &'a str,
    container: Option<&'a Container>,
    figures: AmountsNowAndThen,
    is_gone: bool,
}

impl<'a> Entry<'a> {
    /// The entries of a profile in a view.
    fn all(view: View, profile: &'a Profile) -> Vec<Entry<'a>> {
        let figures = |total: &Amounts| AmountsNowAndThen {
            now: *total,
            then: Amounts::default(),
        };
        if view == View::Groups {
            let groups = profile.groups().into_iter().map(|group| Entry {
                subset: Subset::Group(group.container.group.as_str().into()),
                number: group.processes,
                name: "",
                container: Some(group.container),
                figures: figures(&group.total),
                is_gone: false,
            });
            return groups.collect();
        }
        let members = profile.members().into_iter().map(|member| Entry {
            subset: Subset::Process(member.pid),
            number: member.pid.0 as usize,
            name: member.comm,
            container: member.container,
            figures: figures(member.total),
            is_gone: false,
        });
        members.collect()
    }

    /// The same entries with the figures of a mark, plus entries that existed only then.
    fn since(view: View, now: &'a Profile, mark: Option<&'a Profile>) -> Vec<Entry<'a>> {
        let mut entries = Entry::all(view, now);
        let before = mark.map(|mark| Entry::all(view, mark)).unwrap_or_default();
        let before = before.into_iter().map(|e| (e.subset.clone(), e));
        let mut before: HashMap<Subset, Entry<'_>> = before.collect();
        for entry in &mut entries {
            if let Some(then) = before.remove(&entry.subset) {
                entry.figures.then = then.figures.now;
            }
        }
        entries.extend(before.into_values().map(|entry| Entry {
            figures: AmountsNowAndThen {
                now: Amounts::default(),
                then: entry.figures.now,
            },
            is_gone: true,
            ..entry
        }));
        entries
    }

    /// Whether the entry matches a filter: searches names, ids and places, like the page's list.
    fn matches(&self, search: &Search) -> bool {
        let mut text = format!("{} {}", self.name, self.number);
        if let Some(Container { group, id, pod }) = self.container {
            let parts = [Some(group), id.as_ref(), pod.as_ref()];
            for part in parts.into_iter().flatten() {
                text.push(' ');
                text += part;
            }
        }
        search.text(&text)
    }
}

/// Container and pod, whose names are shorter, then the control group.
fn place(container: &Container) -> String {
    let Container { group, id, pod } = container;
    let id = id.as_ref().map(|id| id.chars().take(SHORT_ID).collect());
    let pod = pod.as_ref().map(|pod| format!("pod {pod}"));
    let parts = [id, pod, Some(group.clone())];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

impl From<Entry<'_>> for ListRow {
    fn from(entry: Entry<'_>) -> ListRow {
        ListRow {
            subset: Some(entry.subset),
            number: entry.number,
            name: entry.name.to_owned(),
            place: entry.container.map(place).unwrap_or_default(),
            figures: entry.figures,
            is_gone: entry.is_gone,
        }
    }
}

impl List {
    /// The list of a view, with the figures of a mark.
    pub(super) fn for_view(
        view: View,
        now: &Profile,
        mark: Option<&Profile>,
        order: &Order,
        kind: Kind,
    ) -> List {
        let whole = AmountsNowAndThen {
            now: now.total,
            then: mark.map(|mark| mark.total).unwrap_or_default(),
        };
        let mut entries = Entry::since(view, now, mark);
        let all = entries.iter().filter(|entry| !entry.is_gone).count();
        let mut rest = whole;
        entries.iter().for_each(|e| rest.take_out(e.figures));
        let is_filtered = !order.filter.is_empty();
        if is_filtered {
            let search = Search::new(&order.filter);
            entries.retain(|entry| entry.matches(&search));
        }
        let mut rows: Vec<ListRow> = entries.into_iter().map(ListRow::from).collect();
        let listed = rows.iter().filter(|row| !row.is_gone).count();
        if !is_filtered && rest != AmountsNowAndThen::default() {
            rows.push(ListRow {
                name: rest_name(view).to_owned(),
                figures: rest,
                ..ListRow::default()
            });
        }
        let mut sum = AmountsNowAndThen::default();
        rows.iter().for_each(|row| sum.add(row.figures));
        rows.sort_by(|a, b| compare(view, order, kind, mark.is_some(), [a, b]));
        List {
            rows,
            sum,
            whole,
            all,
            listed,
            place: ListPosition::default(),
        }
    }

    /// The row of a process or group.
    pub(super) fn at(&self, subset: &Subset) -> Option<usize> {
        let mut rows = self.rows.iter();
        rows.position(|row| row.subset.as_ref() == Some(subset))
    }
}

/// The name of the row for the remaining memory.
fn rest_name(view: View) -> &'static str {
    match view {
        View::Groups => "[in no known control group]",
        _ => "[of ended processes]",
    }
}

fn compare(
    view: View,
    order: &Order,
    kind: Kind,
    by_change: bool,
    [a, b]: [&ListRow; 2],
) -> Ordering {
    // Largest first; with a mark, largest change first.
    let weight = |row: &ListRow| {
        let pair = row.figures.pair(kind);
        match by_change {
            true => (pair.change().unsigned_abs(), pair.now),
            false => (u128::from(pair.now), 0),
        }
    };
    let by = match order.sort {
        Column::Chosen => weight(b).cmp(&weight(a)),
        Column::Kind(kind) => kind
            .figure(&b.figures.now)
            .cmp(&kind.figure(&a.figures.now)),
        Column::Number if view == View::Groups => b.number.cmp(&a.number),
        Column::Number => a.number.cmp(&b.number),
        Column::Name => a.name.cmp(&b.name),
        Column::Place => a.place.cmp(&b.place),
    };
    let by = match order.reversed {
        true => by.reverse(),
        false => by,
    };
    // The row of the rest is not a process, so it comes last.
    let last = a.subset.is_none().cmp(&b.subset.is_none());
    last.then(by)
        .then_with(|| a.name.cmp(&b.name))
        .then_with(|| a.place.cmp(&b.place))
        .then(a.number.cmp(&b.number))
}
