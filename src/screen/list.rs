//! A list of processes or of control groups: rows, sums, filter, order.
//!
//! Rows are made when a report comes or a setting changes; frames read only those that are seen.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::model::Pair;
use super::place::Place;
use super::view::View;
use crate::profile::{Amounts, Kind, Profile, Subset};
use crate::target::Container;
use crate::tree::Search;

/// Characters of a container's id that are shown, as runtimes show it.
const SHORT_ID: usize = 12;

/// What a list is sorted by.
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

/// What both lists are filtered and sorted by.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) sort: Column,
    pub(super) reversed: bool,
    pub(super) filter: String,
}

/// Figures now and at the mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) now: Amounts,
    pub(super) then: Amounts,
}

impl Figures {
    pub(super) fn pair(&self, kind: Kind) -> Pair {
        Pair {
            now: kind.of(&self.now),
            then: kind.of(&self.then),
        }
    }
}

/// A process or a control group.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// What it stands for; `None` for what no other row has.
    pub(super) subset: Option<Subset>,
    /// The process id, or how many processes are in the group itself.
    pub(super) number: usize,
    /// The process's name; groups have none.
    pub(super) name: String,
    /// Container, pod and control group.
    pub(super) place: String,
    pub(super) figures: Figures,
    /// Whether it was there at the mark and is not any more.
    pub(super) is_gone: bool,
}

impl Row {
    /// What the head calls it.
    pub(super) fn title(&self) -> String {
        match &self.subset {
            Some(Subset::Group(group)) => format!("control group {group} and below"),
            _ => format!("{} (pid {})", self.name, self.number),
        }
    }
}

/// A list: the rows that its filter leaves, in their order.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) rows: Vec<Row>,
    /// The sum of the rows; without a filter, that is the whole.
    pub(super) sum: Figures,
    /// The whole, whatever the filter.
    pub(super) whole: Figures,
    /// How many processes or groups there are now.
    pub(super) all: usize,
    /// How many of them the filter leaves.
    pub(super) listed: usize,
    pub(super) place: Place,
}

/// What becomes a row.
struct Entry<'a> {
    subset: Subset,
    number: usize,
    name: &'a str,
    container: Option<&'a Container>,
    total: Amounts,
}

impl Entry<'_> {
    fn all(view: View, profile: &Profile) -> Vec<Entry<'_>> {
        if view == View::Groups {
            let groups = profile.groups().into_iter().map(|group| Entry {
                subset: Subset::Group(group.container.group.as_str().into()),
                number: group.processes,
                name: "",
                container: Some(group.container),
                total: group.total,
            });
            return groups.collect();
        }
        let members = profile.members().into_iter().map(|member| Entry {
            subset: Subset::Process(member.pid),
            number: member.pid.0 as usize,
            name: member.comm,
            container: member.container,
            total: *member.total,
        });
        members.collect()
    }

    /// Whether a filter leaves it: names, ids and places, as in the page's list.
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

impl List {
    /// The list of a view, with the figures of a mark.
    pub(super) fn of(
        view: View,
        now: &Profile,
        mark: Option<&Profile>,
        order: &Order,
        kind: Kind,
    ) -> List {
        let search = (!order.filter.is_empty()).then(|| Search::new(&order.filter));
        let entries = Entry::all(view, now);
        let gone = mark.map_or(Vec::new(), |mark| Entry::all(view, mark));
        let mut then: HashMap<Subset, Entry<'_>> =
            gone.into_iter().map(|e| (e.subset.clone(), e)).collect();
        let whole = Figures {
            now: now.total,
            then: mark.map(|mark| mark.total).unwrap_or_default(),
        };
        let mut list = List {
            all: entries.len(),
            whole,
            ..List::default()
        };
        let mut rest = whole;
        let mut add = |entry: Entry<'_>, figures: Figures, is_gone: bool| {
            rest.now -= figures.now;
            rest.then -= figures.then;
            if search.as_ref().is_some_and(|s| !entry.matches(s)) {
                return;
            }
            list.sum.now += figures.now;
            list.sum.then += figures.then;
            list.listed += usize::from(!is_gone);
            list.rows.push(Row {
                number: entry.number,
                name: entry.name.to_owned(),
                place: entry.container.map(place).unwrap_or_default(),
                subset: Some(entry.subset),
                figures,
                is_gone,
            });
        };
        for entry in entries {
            let figures = Figures {
                now: entry.total,
                then: then
                    .remove(&entry.subset)
                    .map_or_else(Amounts::default, |e| e.total),
            };
            add(entry, figures, false);
        }
        for entry in then.into_values() {
            let figures = Figures {
                now: Amounts::default(),
                then: entry.total,
            };
            add(entry, figures, true);
        }
        if search.is_none() {
            list.sum = whole;
            if rest != Figures::default() {
                list.rows.push(Row {
                    name: rest_name(view).to_owned(),
                    figures: rest,
                    ..Row::default()
                });
            }
        }
        let by_change = mark.is_some();
        list.rows
            .sort_by(|a, b| compare(view, order, kind, by_change, [a, b]));
        list
    }

    /// The row of a process or group.
    pub(super) fn at(&self, subset: &Subset) -> Option<usize> {
        let mut rows = self.rows.iter();
        rows.position(|row| row.subset.as_ref() == Some(subset))
    }
}

/// What the row of the rest is called.
fn rest_name(view: View) -> &'static str {
    match view {
        View::Groups => "[in no known control group]",
        _ => "[of ended processes]",
    }
}

fn compare(view: View, order: &Order, kind: Kind, by_change: bool, [a, b]: [&Row; 2]) -> Ordering {
    // The largest first: with a mark, by change.
    let weight = |row: &Row| {
        let pair = row.figures.pair(kind);
        match by_change {
            true => (pair.change().unsigned_abs(), pair.now),
            false => (u128::from(pair.now), 0),
        }
    };
    let by = match order.sort {
        Column::Chosen => weight(b).cmp(&weight(a)),
        Column::Kind(kind) => kind.of(&b.figures.now).cmp(&kind.of(&a.figures.now)),
        Column::Number if view == View::Groups => b.number.cmp(&a.number),
        Column::Number => a.number.cmp(&b.number),
        Column::Name => a.name.cmp(&b.name),
        Column::Place => a.place.cmp(&b.place),
    };
    let by = match order.reversed {
        true => by.reverse(),
        false => by,
    };
    // What is no process does not lead the list.
    let last = a.subset.is_none().cmp(&b.subset.is_none());
    last.then(by)
        .then_with(|| a.name.cmp(&b.name))
        .then_with(|| a.place.cmp(&b.place))
        .then(a.number.cmp(&b.number))
}
