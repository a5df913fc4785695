// The difference between two marks, or between a mark and now: by stack and by function. What grew is shown first.

import { api } from "../api.js";
import { byId, display, h, isNarrow, notice, replace, select, setProperties, setText } from "../dom.js";
import { clock, estimate, exactWithError, percent, signed } from "../format.js";
import { fileAndLine, functionName } from "../glossary.js";
import { orderOr, sorted } from "../sort.js";
import { change, state } from "../state.js";
import { bar, ESTIMATE_REM, Table } from "../table.js";
import { colouredFile } from "../tree/legend.js";
import { Graph } from "./graph.js";

/** @typedef {import("../api.js").DiffRow} DiffRow */

/** The changes that can be shown: [setting, name, whether a change is one of them, explanation of a frame's width, text if there are none]. */
const CHANGES = /** @type {[string, string, (change: number) => boolean, string, string][]} */ ([
  ["", "growth", (change) => change > 0, "A frame is as wide as what grew in it and below it.", "No stack has more memory than before. Let the program run, or select “shrinkage” or “all”."],
  ["shrinkage", "shrinkage", (change) => change < 0, "A frame is as wide as what shrank in it and below it.", "No stack has less memory than before."],
  ["all", "all", () => true, "Red frames grew, blue ones shrank; a frame is as wide as the larger of its two sizes.", "Neither moment has memory of this kind."],
]);

const shownChanges = () => CHANGES.find(([name]) => name === state.show) ?? CHANGES[0];

export class Diff {
  constructor() {
    this.largest = 0;
    this.graph = new Graph({ draw: "flame", fetch: () => this.fetch(), empty: "Neither moment has memory of this kind." });
    this.columns = [
      { name: "change", label: "Change", title: "Self after minus self before: memory that the function itself touched or allocated", numeric: true, rem: 10, by: (/** @type {DiffRow} */ row) => row.self, cell: (/** @type {DiffRow} */ row) => bar(signed(row.self, row.self_error, this.unit), row.self, this.largest, row.self < 0 ? "less" : "more"), tip: (/** @type {DiffRow} */ row) => exactWithError(row.self, row.self_error, this.unit) },
      { name: "name", label: "Function", wide: true, by: functionName, cell: (/** @type {DiffRow} */ row) => (isNarrow() ? h("span", {}, functionName(row), h("span", { class: "faint" }, ` ${fileAndLine(row.file, row.line)}`)) : functionName(row)), tip: (/** @type {DiffRow} */ row) => `${functionName(row)} ${fileAndLine(row.file, row.line)}` },
      // On narrow screens, the place is beside the name.
      ...(isNarrow() ? [] : [{ name: "module", label: "File and line", rem: 10.5, by: (/** @type {DiffRow} */ row) => row.file, cell: (/** @type {DiffRow} */ row) => colouredFile(row.file, row.category.startsWith("own"), row.line), tip: (/** @type {DiffRow} */ row) => row.path }]),
      // The error of the change is an upper bound of the errors of both figures.
      { name: "before", label: "Self before", numeric: true, rem: ESTIMATE_REM, by: (/** @type {DiffRow} */ row) => row.self_from, cell: (/** @type {DiffRow} */ row) => estimate(row.self_from, row.self_error, this.unit), tip: (/** @type {DiffRow} */ row) => exactWithError(row.self_from, row.self_error, this.unit) },
      { name: "after", label: "Self after", numeric: true, rem: ESTIMATE_REM, by: (/** @type {DiffRow} */ row) => row.self_to, cell: (/** @type {DiffRow} */ row) => estimate(row.self_to, row.self_error, this.unit), tip: (/** @type {DiffRow} */ row) => exactWithError(row.self_to, row.self_error, this.unit) },
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
    this.switch = h("div", { class: "switch", role: "group", "aria-label": "Changes that are shown" }, ...CHANGES.map(([show, name]) => h("button", { class: "small", "data-show": show, onclick: () => change({ show, zoom: "", sel: "" }, true) }, name)));
    this.choice = h("div", { class: "choice-row" }, this.selectors, this.switch);
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph" }, this.choice, this.note, this.stage);
    /** @type {DiffRow[]} */
    this.rows = [];
    /** @type {import("../api.js").Mark[]} */
    this.marks = [];
    /** The mark that is always there. @type {import("../api.js").Mark | null} */
    this.peak = null;
    this.signature = "";
  }

  /** The tree with the changes that are shown, so that no other changes are drawn in between. */
  async fetch() {
    const tree = await api.diffTree(state);
    if (tree.before) tree.drawChanges(shownChanges()[0]);
    return tree;
  }

  async refresh() {
    const { marks, peak } = await api.marksAndPeak();
    [this.marks, this.peak] = [marks, peak ?? null];
    const newest = this.marks.reduce((/** @type {import("../api.js").Mark | null} */ last, mark) => (last && last.created > mark.created ? last : mark), null);
    const known = this.choices().some((mark) => mark.id === state.from);
    // By default, compare with the newest mark, which was probably set for this comparison. The change of the link fetches the data.
    if (!known && newest) return change({ from: newest.id });
    this.showSelectors();
    this.choice.hidden = !known;
    if (!known) {
      setText(this.note, "");
      const text = "A mark records the memory of a moment. Set one here, or with the m key, let the program run, and compare.";
      const button = h("button", { onclick: () => byId("mark").click() }, "Set a mark now");
      const withPeak = this.peak && h("button", { onclick: () => change({ from: "peak" }) }, "Compare with the peak");
      return replace(this.stage, notice("No marks yet", text, "", h("p", {}, button, " ", withPeak)));
    }
    const [, { report, rows }] = await Promise.all([this.graph.refresh(), api.diffFunctions(state)]);
    this.rows = rows;
    this.unit = this.graph.tree?.unit ?? "bytes";
    // The table says more than a narrow graph.
    display(this.stage, ...(isNarrow() ? [this.tableBox, this.graph.element] : [this.graph.element, this.tableBox]));
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
    const [show, , shows, about, empty] = shownChanges();
    for (const button of this.switch.children) setProperties(button, { "aria-pressed": String(button.dataset.show === show) });
    const [error, unit, before] = [tree.error[0], tree.unit, tree.before[0]];
    const share = before > 0 ? ` (${tree.change(0) > 0 ? "+" : ""}${percent(tree.change(0), before).replace("-", "−")})` : "";
    setText(this.note, `${estimate(before, error, unit)} → ${estimate(tree.value[0], error, unit)}: ${signed(tree.change(0), error, unit)}${share}. ${about}`);
    tree.drawChanges(show);
    this.graph.options.empty = empty;
    this.graph.show();
    const rows = this.rows.filter((row) => shows(row.self));
    this.largest = Math.max(0, ...rows.map((row) => Math.abs(row.self)));
    const order = orderOr(this.columns, state.sort, show === "shrinkage" ? "change" : "-change");
    this.table.show(sorted(rows, this.columns, order), order);
  }
}
