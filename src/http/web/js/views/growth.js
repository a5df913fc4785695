// What grew over the recorded span, by function or by stack: how fast, how certainly, since when, with a small time line. The
// range of the timeline is the span.

import { api } from "../api.js";
import { h, notice, replace, select, setText } from "../dom.js";
import { amount, bytes, clock, percent } from "../format.js";
import { label } from "../glossary.js";
import { orderOr, sorted } from "../sort.js";
import { change, state } from "../state.js";
import { ESTIMATE_REM, Table } from "../table.js";

/** @typedef {import("../api.js").GrowthRow} GrowthRow */

/** Size of a small time line in pixels. */
const [WIDTH, HEIGHT] = [110, 18];
const SVG = "http://www.w3.org/2000/svg";

/** A rate with its certain range. */
const rate = (/** @type {GrowthRow} */ row) => `${bytes(Math.max(0, row.per_hour))}/h ± ${bytes(2 * row.error)}`;
const certain = (/** @type {GrowthRow} */ row) => row.per_hour - 2 * row.error;

/** A small time line. */
function picture(/** @type {number[]} */ values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (/** @type {number} */ i) => (i / Math.max(1, values.length - 1)) * WIDTH;
  const y = (/** @type {number} */ value) => HEIGHT - 2 - ((value - low) / Math.max(1, high - low)) * (HEIGHT - 4);
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  line.setAttribute("class", "small-line");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("width", String(WIDTH));
  svg.setAttribute("height", String(HEIGHT));
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

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
      { name: "line", label: "Over time", rem: 8, cell: (/** @type {GrowthRow} */ row) => picture(row.values) },
      { name: "name", label: "Function", wide: true, by: (/** @type {GrowthRow} */ row) => row.name, cell: (/** @type {GrowthRow} */ row) => row.name, tip: (/** @type {GrowthRow} */ row) => row.name },
    ];
    this.table = new Table(this.columns, { label: "What grew", sort: (sort) => change({ sort }), key: (row) => row.name });
    this.tableBox = h("div", { class: "diff-table" }, this.table.element);
    this.note = h("p", { class: "note" });
    this.by = select("What is summed up in a row", [["function", "by function"], ["stack", "by stack"]], state.gby, (gby) => change({ gby, sort: "" }));
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph" }, h("div", { class: "choice" }, this.by), this.note, this.stage);
  }

  async refresh() {
    this.by.value = state.gby;
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
