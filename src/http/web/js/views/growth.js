// What grew over the recorded span, by function or by stack: how fast, how certainly, since when, with a small time line. The
// range of the timeline is the span.

import { api } from "../api.js";
import { h, notice, replace, setText } from "../dom.js";
import { amount, bytes, clock, percent } from "../format.js";
import { label } from "../glossary.js";
import { smallLine } from "../small_line.js";
import { orderOr, sorted } from "../sort.js";
import { change, state } from "../state.js";
import { ESTIMATE_REM, Table } from "../table.js";

/** @typedef {import("../api.js").GrowthRow} GrowthRow */

/** A rate with its certain range. */
const rate = (/** @type {GrowthRow} */ row) => `${bytes(Math.max(0, row.per_hour))}/h ± ${bytes(2 * row.error)}`;
const certain = (/** @type {GrowthRow} */ row) => row.per_hour - 2 * row.error;

export class Growth {
  constructor() {
    /** @type {GrowthRow[]} */
    this.rows = [];
    this.columns = [
      { name: "rate", label: "Growth", title: "Slope of a straight line through the figure, with the range that covers it in 95 of 100 cases", numeric: true, rem: ESTIMATE_REM + 3, by: certain, cell: rate },
      { name: "share", label: "Share", title: "Part of the growth of the total that it explains", numeric: true, rem: 5, by: (/** @type {GrowthRow} */ row) => row.share ?? 0, cell: (/** @type {GrowthRow} */ row) => (row.share === undefined ? "" : percent(row.share, 1)) },
      { name: "shape", label: "How", rem: 6, title: "steady: until the end, as a leak does; stopped: a cache that is full, for example; jump: at once", by: (/** @type {GrowthRow} */ row) => row.shape ?? "", cell: (/** @type {GrowthRow} */ row) => row.shape ?? "" },
      { name: "since", label: "Since", rem: 6, by: (/** @type {GrowthRow} */ row) => row.since, cell: (/** @type {GrowthRow} */ row) => clock(row.since) },
      { name: "last", label: "At the end", title: "The mean of the last interval", numeric: true, by: (/** @type {GrowthRow} */ row) => row.values.at(-1) ?? 0, cell: (/** @type {GrowthRow} */ row) => bytes(row.values.at(-1) ?? 0) },
      { name: "line", label: "Over time", rem: 8, cell: (/** @type {GrowthRow} */ row) => smallLine(row.values) },
      { name: "name", label: "Function", wide: true, by: (/** @type {GrowthRow} */ row) => row.name, cell: (/** @type {GrowthRow} */ row) => row.name, tip: (/** @type {GrowthRow} */ row) => row.name },
    ];
    this.table = new Table(this.columns, { label: "What grew", sort: (sort) => change({ sort }), key: (row) => row.name });
    this.tableBox = h("div", { class: "diff-table" }, this.table.element);
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph" }, this.note, this.stage);
  }

  async refresh() {
    try {
      const { rows, total, from, to } = await api.growth();
      this.rows = rows;
      if (!total) {
        setText(this.note, "");
        return replace(this.stage, notice("Too few moments", "A trend needs ten moments, and there is at most one a second while the memory changes. Wait, or select a longer span with the wheel on the time line."));
      }
      const grew = total.shape === "steady" ? `grew by ${rate(total)}` : "did not certainly grow until the end";
      setText(this.note, `${label(state.kind)} ${grew}, from ${clock(from)} to ${clock(to)}: ${amount(total.values[0], "bytes")} to ${amount(total.values.at(-1) ?? 0, "bytes")}. The youngest tenth of the span is left out.`);
      replace(this.stage, rows.length ? this.tableBox : notice("Nothing certainly grew", "Select a longer span with the wheel on the time line, or another kind."));
      this.show();
    } catch (error) {
      setText(this.note, "");
      throw error;
    }
  }

  show() {
    const order = orderOr(this.columns, state.sort, "-rate");
    this.table.show(state.sort ? sorted(this.rows, this.columns, order) : this.rows, order);
  }
}
