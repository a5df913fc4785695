// A list that fits in one reply; it is sorted and searched in the browser.

import { fill, h, notice, say, set } from "../dom.js";
import { change, state } from "../state.js";
import { sort, Table } from "../table.js";
import { matcher } from "../tree/search.js";

/**
 * @template T
 */
export class List {
  /**
   * @param {{ label: string, columns: import("../table.js").Column<T>[], sort: string, key: (row: T) => string, text: (row: T) => string, empty: string, open?: (row: T) => void }} what
   */
  constructor(what) {
    this.what = what;
    /** @type {T[]} */
    this.rows = [];
    this.table = new Table(what.columns, { label: what.label, sort: (sort) => change({ sort }), key: what.key, open: what.open });
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "stage" }, this.table.element);
    this.element = h("div", { class: "graph" }, this.note, this.stage);
  }

  /** Shows the rows with the settings of the link; `tell` returns the line above them, `size` a row's bytes. */
  fill(/** @type {T[]} */ rows, /** @type {(shown: T[]) => string} */ tell, /** @type {(row: T) => number} */ size) {
    const matches = matcher(state.q);
    const shown = matches ? rows.filter((row) => matches(this.what.text(row))) : rows;
    const known = this.what.columns.some((column) => column.by && column.name === state.sort.replace(/^-/, ""));
    const sorted = known ? state.sort : this.what.sort;
    say(this.note, tell(shown));
    set(this.note, { "data-total": shown.reduce((total, row) => total + size(row), 0), "data-count": shown.length });
    if (shown.length === 0) fill(this.stage, notice("Nothing here", state.q ? "Nothing matches the search." : this.what.empty));
    else if (!this.stage.contains(this.table.element)) fill(this.stage, this.table.element);
    this.table.show(sort(shown, this.what.columns, sorted), sorted);
  }
}
