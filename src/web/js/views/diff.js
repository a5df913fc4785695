// What changed between two marks, or since a mark: by stack and by function.

import { api } from "../api.js";
import { fill, h, notice, say, select } from "../dom.js";
import { change as signed, clock, estimate, exactly } from "../format.js";
import { change, state } from "../state.js";
import { bar, ESTIMATE, sort, Table } from "../table.js";
import { noSymbol } from "../glossary.js";
import { Graph } from "./graph.js";

/** @typedef {import("../api.js").DiffRow} DiffRow */

function named(/** @type {DiffRow} */ row) {
  return row.function ?? noSymbol(row.file);
}

export class Diff {
  constructor() {
    this.largest = 0;
    this.graph = new Graph({ draw: "flame", fetch: () => api.diffTree(state), empty: "There is no memory of this kind at either moment." });
    this.columns = [
      { name: "change", label: "Change", title: "Self after minus self before: memory that the function itself touched or allocated", numeric: true, rem: ESTIMATE, by: (/** @type {DiffRow} */ row) => row.self, cell: (/** @type {DiffRow} */ row) => bar(signed(row.self, row.self_error, this.unit), row.self, this.largest, row.self < 0 ? "less" : "more"), tip: (/** @type {DiffRow} */ row) => exactly(row.self, row.self_error, this.unit) },
      // The error of a change is that of both figures together, so no less than that of each.
      { name: "before", label: "Self before", numeric: true, rem: ESTIMATE, by: (/** @type {DiffRow} */ row) => row.self_from, cell: (/** @type {DiffRow} */ row) => estimate(row.self_from, row.self_error, this.unit), tip: (/** @type {DiffRow} */ row) => exactly(row.self_from, row.self_error, this.unit) },
      { name: "after", label: "Self after", numeric: true, rem: ESTIMATE, by: (/** @type {DiffRow} */ row) => row.self_to, cell: (/** @type {DiffRow} */ row) => estimate(row.self_to, row.self_error, this.unit), tip: (/** @type {DiffRow} */ row) => exactly(row.self_to, row.self_error, this.unit) },
      { name: "name", label: "Function", wide: true, by: named, cell: named },
      { name: "module", label: "File", by: (/** @type {DiffRow} */ row) => row.file, cell: (/** @type {DiffRow} */ row) => row.file, tip: (/** @type {DiffRow} */ row) => row.path },
    ];
    this.table = new Table(this.columns, {
      label: "Growth of each function",
      sort: (sort) => change({ sort }),
      key: (row) => `${row.path}\n${row.function}`,
      open: (row) => change({ q: "", fn: row.function ?? "", path: row.path }),
    });
    /** What the figures count. @type {import("../kinds.js").Unit} */
    this.unit = "bytes";
    this.choice = h("div", { class: "choice" });
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph" }, this.choice, this.note, this.stage);
    /** @type {DiffRow[]} */
    this.rows = [];
    /** @type {import("../api.js").Mark[]} */
    this.marks = [];
    this.signature = "";
  }

  async refresh() {
    this.marks = await api.marks();
    const newest = this.marks.reduce((/** @type {import("../api.js").Mark | null} */ last, mark) => (last && last.created > mark.created ? last : mark), null);
    const known = this.marks.some((mark) => mark.id === state.from);
    // Without a choice, the newest mark: it was probably set for this comparison. (This change fetches the difference.)
    if (!known && newest) return change({ from: newest.id });
    this.choose();
    if (!known) {
      say(this.note, "");
      const text = "A mark keeps the memory state of a moment. Set one with the button above the timeline (or the m key), let the program run, and see here what has grown since.";
      const set = h("button", { onclick: () => document.getElementById("mark")?.click() }, "Set a mark now");
      return fill(this.stage, notice("No marks yet", text, "", set));
    }
    const [, { report, rows }] = await Promise.all([this.graph.refresh(), api.diffFunctions(state)]);
    this.rows = rows;
    this.unit = this.graph.tree?.unit ?? "bytes";
    if (!this.stage.contains(this.graph.element)) fill(this.stage, this.graph.element, h("div", { class: "diff-table" }, this.table.element));
    this.show();
    return report;
  }

  choose() {
    const options = /** @type {[string, string][]} */ (this.marks.map((mark) => [mark.id, `${mark.name ?? `mark ${mark.id}`} (${clock(mark.taken)})`]));
    const signature = JSON.stringify([options, state.from, state.to]);
    if (signature === this.signature) return;
    this.signature = signature;
    fill(
      this.choice,
      h("span", {}, "From "),
      options.length > 0 && select("From mark", options, state.from, (from) => change({ from, zoom: "", sel: "" }, true)),
      h("span", {}, " to "),
      select("To mark or now", [["", "now"], ...options], state.to, (to) => change({ to, zoom: "", sel: "" }, true)),
      state.from && h("button", { class: "small", onclick: () => this.forget() }, "delete this mark"),
    );
  }

  async forget() {
    await api.removeMark(state.from);
    change({ from: "" });
  }

  show() {
    this.choose();
    const tree = this.graph.tree;
    if (!tree?.before) return;
    const [error, unit] = [tree.error[0], tree.unit];
    say(this.note, `${signed(tree.change(0), error, unit)}: from ${estimate(tree.before[0], error, unit)} to ${estimate(tree.value[0], error, unit)}. Red frames grew, blue ones shrank; a frame is as wide as the larger of its two sizes.`);
    this.graph.show();
    this.largest = Math.max(0, ...this.rows.map((row) => Math.abs(row.self)));
    const sorted = this.columns.some((column) => column.name === state.sort.replace(/^-/, "")) ? state.sort : "-change";
    this.table.show(sort(this.rows, this.columns, sorted), sorted);
  }
}
