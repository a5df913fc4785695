//! The lists of processes and of control groups.

use std::sync::Arc;

use super::list::{Column, List, ListRow, Order};
use super::state::UiState;
use super::view::View;
use memprof_profile::Subset;

/// Both lists and their sort order.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) processes: List,
    pub(super) groups: List,
    pub(super) order: Order,
    /// The view from which the lists were opened.
    pub(super) from: View,
}

impl Lists {
    pub(super) fn new() -> Lists {
        Lists {
            processes: List::default(),
            groups: List::default(),
            order: Order::default(),
            from: View::Overview,
        }
    }
}

impl UiState {
    /// The visible list of processes or control groups, if any.
    pub(super) fn list(&self) -> Option<&List> {
        match self.view {
            View::Processes => Some(&self.lists.processes),
            View::Groups => Some(&self.lists.groups),
            View::Overview | View::Functions | View::Tree => None,
        }
    }

    pub(super) fn list_mut(&mut self) -> Option<&mut List> {
        match self.view {
            View::Processes => Some(&mut self.lists.processes),
            View::Groups => Some(&mut self.lists.groups),
            View::Overview | View::Functions | View::Tree => None,
        }
    }

    /// The row at the cursor of the list.
    pub(super) fn selected(&self) -> Option<&ListRow> {
        let list = self.list()?;
        list.rows.get(list.place.cursor)
    }

    /// Rebuilds the rows of the visible list. The cursor stays on its process or group; a cursor on the first row stays
    /// on the first row instead.
    pub(super) fn fill_list(&mut self) {
        let Some(report) = self.report.clone() else {
            return;
        };
        let mark = self.marks.compared().map(|mark| Arc::clone(&mark.report));
        let mark = mark.as_ref().map(|report| &*report.profile);
        let mut list = List::for_view(
            self.view,
            &report.profile,
            mark,
            &self.lists.order,
            self.kind,
        );
        let selected = self.selected().and_then(|row| row.subset.clone());
        let page = self.page();
        if let Some(shown) = self.list_mut() {
            list.place = shown.place;
            let kept = selected.filter(|_| list.place.cursor > 0);
            let to = kept.and_then(|subset| list.at(&subset));
            list.place.follow(to, list.rows.len(), page);
            *shown = list;
        }
    }

    /// Moves the cursor of the visible list to a process or group, if it is listed.
    pub(super) fn select(&mut self, subset: &Subset) {
        if let Some(at) = self.list().and_then(|list| list.at(subset)) {
            self.go(at);
        }
    }

    /// Sorts the lists by the next column.
    pub(super) fn sort_by_next(&mut self) {
        let columns = self.columns();
        let at = columns.iter().position(|c| *c == self.lists.order.sort);
        let next = at.map_or(0, |at| (at + 1) % columns.len());
        self.lists.order.sort = columns[next];
        self.fill_list();
    }

    /// The sort columns of the visible list.
    fn columns(&self) -> Vec<Column> {
        let further = super::render::further_kinds(self);
        let mut columns = vec![Column::Chosen];
        columns.extend(further.into_iter().map(Column::Kind));
        columns.push(Column::Number);
        if self.view == View::Processes {
            columns.push(Column::Name);
        }
        columns.push(Column::Place);
        columns
    }
}
