// A table whose rows memprof sorts and pages, with a note above it.

import { display, h, notice, replace, setProperties, setText } from "../dom.js";
import { orderOr, parseOrder } from "../sort.js";
import { change, state } from "../state.js";
import { showPager, Table } from "../table.js";

/** Rows per page. */
const LIMIT = 100;

/**
 * @template T
 */
export class PagedTable {
  /**
   * @param {import("../table.js").Column<T>[]} columns
   * @param {{ label: string, key: (row: T) => string, open: (row: T) => void }} options
   * @param {(keyof import("../state.js").State)[]} settings the settings that require another request
   */
  constructor(columns, options, settings) {
    this.columns = columns;
    this.names = settings;
    /** The settings of the last request. */
    this.requested = "";
    this.table = new Table(columns, { ...options, sort: (sort) => change({ sort, page: "0" }) });
    this.note = h("p", { class: "note" });
    this.pager = h("div", { class: "pages" });
    this.stage = h("div", { class: "stage" }, this.table.element);
    this.element = h("div", { class: "graph" }, this.note, this.stage, this.pager);
  }

  get settings() {
    return JSON.stringify(this.names.map((name) => state[name]));
  }

  /** The parameters of a request for the current page. */
  parameters(/** @type {string} */ defaultOrder) {
    this.requested = this.settings;
    this.order = orderOr(this.columns, state.sort, defaultOrder);
    this.offset = Math.max(0, Number(state.page) || 0) * LIMIT;
    const { name, descending } = parseOrder(this.order);
    return { sort: name, order: descending ? "desc" : "asc", offset: this.offset, limit: LIMIT };
  }

  /** Shows a page of rows; `empty` is the title and the text if there are none. */
  showRows(/** @type {{ rows: T[], count: number }} */ { rows, count }, /** @type {number} */ total, /** @type {string} */ note, /** @type {string[]} */ empty, /** @type {Node | null} */ below = null) {
    setText(this.note, note);
    setProperties(this.note, { "data-total": total, "data-count": count });
    if (rows.length === 0) replace(this.stage, notice(empty[0], empty[1], below ? "with-choices" : "", below));
    else display(this.stage, this.table.element);
    this.table.show(rows, this.order ?? "");
    showPager(this.pager, { offset: this.offset ?? 0, shown: rows.length, count, limit: LIMIT });
  }

  /** Fetches other rows only if the settings changed since the last request. */
  async show() {
    return this.requested === this.settings ? null : this.refresh();
  }

  /** @returns {Promise<import("../api.js").Report | void>} */
  async refresh() {}
}
