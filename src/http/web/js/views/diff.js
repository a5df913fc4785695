// The difference between two marks, or between a mark and now: by stack and by function.

import { api } from "../api.js";
import { byId, display, h, notice, replace, select, setText } from "../dom.js";
import { clock, estimate, exactWithError, signed } from "../format.js";
import { functionName } from "../glossary.js";
import { orderOr, sorted } from "../sort.js";
import { change, state } from "../state.js";
import { bar, ESTIMATE_REM, Table } from "../table.js";
import { Graph } from "./graph.js";

/** @typedef {import("../api.js").DiffRow} DiffRow */

export class Diff {
  constructor() {
    this.largest = 0;
    this.graph = new Graph({ draw: "flame", fetch: () => api.diffTree(state), empty: "Neither moment has memory of this kind." });
    this.columns = [
      { name: "change", label: "Change", title: "Self after minus self before: memory that the function itself touched or allocated", numeric: true, rem: ESTIMATE_REM, by: (/** @type {DiffRow} */ row) => row.self, cell: (/** @type {DiffRow} */ row) => bar(signed(row.self, row.self_error, this.unit), row.self, this.largest, row.self < 0 ? "less" : "more"), tip: (/** @type {DiffRow} */ row) => exactWithError(row.self, row.self_error, this.unit) },
      // The error of the change is an upper bound of the errors of both figures.
      { name: "before", label: "Self before", numeric: true, rem: ESTIMATE_REM, by: (/** @type {DiffRow} */ row) => row.self_from, cell: (/** @type {DiffRow} */ row) => estimate(row.self_from, row.self_error, this.unit), tip: (/** @type {DiffRow} */ row) => exactWithError(row.self_from, row.self_error, this.unit) },
      { name: "after", label: "Self after", numeric: true, rem: ESTIMATE_REM, by: (/** @type {DiffRow} */ row) => row.self_to, cell: (/** @type {DiffRow} */ row) => estimate(row.self_to, row.self_error, this.unit), tip: (/** @type {DiffRow} */ row) => exactWithError(row.self_to, row.self_error, this.unit) },
      { name: "name", label: "Function", wide: true, by: functionName, cell: functionName },
      { name: "module", label: "File", by: (/** @type {DiffRow} */ row) => row.file, cell: (/** @type {DiffRow} */ row) => row.file, tip: (/** @type {DiffRow} */ row) => row.path },
    ];
    this.table = new Table(this.columns, {
      label: "Change of each function",
      sort: (sort) => change({ sort }),
      key: (row) => `${row.path}\n${row.function}`,
      open: (row) => change({ q: "", fn: row.function ?? "", path: row.path }),
    });
    this.tableBox = h("div", { class: "diff-table" }, this.table.element);
    /** The unit of the figures. @type {import("../kinds.js").Unit} */
    this.unit = "bytes";
    this.selectors = h("div", { class: "choice" });
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph" }, this.selectors, this.note, this.stage);
    /** @type {DiffRow[]} */
    this.rows = [];
    /** @type {import("../api.js").Mark[]} */
    this.marks = [];
    /** The mark that is always there. @type {import("../api.js").Mark | null} */
    this.peak = null;
    this.signature = "";
  }

  async refresh() {
    const { marks, peak } = await api.marksAndPeak();
    [this.marks, this.peak] = [marks, peak ?? null];
    const newest = this.marks.reduce((/** @type {import("../api.js").Mark | null} */ last, mark) => (last && last.created > mark.created ? last : mark), null);
    const known = this.choices().some((mark) => mark.id === state.from);
    // By default, compare with the newest mark, which was probably set for this comparison. The change of the link fetches the data.
    if (!known && newest) return change({ from: newest.id });
    this.showSelectors();
    if (!known) {
      setText(this.note, "");
      const text = "A mark records the memory state of a moment. Set a mark with the button above the timeline or the m key, let the program run, and compare here.";
      const button = h("button", { onclick: () => byId("mark").click() }, "Set a mark now");
      const withPeak = this.peak && h("button", { onclick: () => change({ from: "peak" }) }, "Compare with the peak");
      return replace(this.stage, notice("No marks yet", text, "", button), withPeak);
    }
    const [, { report, rows }] = await Promise.all([this.graph.refresh(), api.diffFunctions(state)]);
    this.rows = rows;
    this.unit = this.graph.tree?.unit ?? "bytes";
    display(this.stage, this.graph.element, this.tableBox);
    this.show();
    return report;
  }

  /** The peak, and the marks. */
  choices() {
    // Moments of a recording are no stored marks.
    const moments = [state.from, state.to].filter((id) => /^@\d+$/.test(id)).map((id) => ({ id, name: "moment", taken: Number(id.slice(1)) }));
    return [...(this.peak ? [this.peak] : []), ...moments, ...this.marks];
  }

  showSelectors() {
    const options = /** @type {[string, string][]} */ (this.choices().map((mark) => [mark.id, `${mark.name ?? `mark ${mark.id}`} (${clock(mark.taken)})`]));
    const signature = JSON.stringify([options, state.from, state.to]);
    if (signature === this.signature) return;
    this.signature = signature;
    replace(
      this.selectors,
      h("span", {}, "From "),
      (this.marks.length > 0 || state.from !== "") && select("From mark", options, state.from, (from) => change({ from, zoom: "", sel: "" }, true)),
      h("span", {}, " to "),
      select("To mark or now", [["", "now"], ...options], state.to, (to) => change({ to, zoom: "", sel: "" }, true)),
      state.from && /^\d+$/.test(state.from) && h("button", { class: "small", onclick: () => this.deleteMark() }, "delete this mark"),
    );
  }

  async deleteMark() {
    await api.removeMark(state.from);
    change({ from: "" });
  }

  show() {
    this.showSelectors();
    const tree = this.graph.tree;
    if (!tree?.before) return;
    const [error, unit] = [tree.error[0], tree.unit];
    setText(this.note, `${signed(tree.change(0), error, unit)}: from ${estimate(tree.before[0], error, unit)} to ${estimate(tree.value[0], error, unit)}. Red frames grew, blue ones shrank; a frame is as wide as the larger of its two sizes.`);
    this.graph.show();
    this.largest = Math.max(0, ...this.rows.map((row) => Math.abs(row.self)));
    const order = orderOr(this.columns, state.sort, "-change");
    this.table.show(sorted(this.rows, this.columns, order), order);
  }
}
