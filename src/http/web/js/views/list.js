// A list that fits in one reply, so that the browser sorts and searches it.

import { display, h, notice, replace, setProperties, setText } from "../dom.js";
import { EMPTY_TITLE } from "../kinds.js";
import { orderOr, sorted } from "../sort.js";
import { change, state } from "../state.js";
import { Table } from "../table.js";
import { matcher } from "../tree/search.js";

/**
 * @template T
 */
export class List {
  /**
   * @param {{ label: string, columns: import("../table.js").Column<T>[], sort: string, key: (row: T) => string, text: (row: T) => string, empty: string, open?: (row: T) => void }} options
   */
  constructor(options) {
    this.options = options;
    /** @type {T[]} */
    this.rows = [];
    this.table = new Table(options.columns, { label: options.label, sort: (sort) => change({ sort }), key: options.key, open: options.open });
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "stage" }, this.table.element);
    this.element = h("div", { class: "graph" }, this.note, this.stage);
  }

  /** Shows rows with the settings of the link. `describe` returns the note above them, `size` the bytes of a row. */
  show(/** @type {T[]} */ rows, /** @type {(shown: T[]) => string} */ describe, /** @type {(row: T) => number} */ size) {
    const matches = matcher(state.q);
    const shown = matches ? rows.filter((row) => matches(this.options.text(row))) : rows;
    const order = orderOr(this.options.columns, state.sort, this.options.sort);
    setText(this.note, describe(shown));
    setProperties(this.note, { "data-total": shown.reduce((total, row) => total + size(row), 0), "data-count": shown.length });
    if (shown.length === 0) replace(this.stage, notice(EMPTY_TITLE, state.q ? "No row matches the search." : this.options.empty));
    else display(this.stage, this.table.element);
    this.table.show(sorted(shown, this.options.columns, order), order);
  }
}
