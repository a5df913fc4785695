// Functions, at any depth of a stack. memprof sorts, searches and pages the list.

import { api } from "../api.js";
import { fill, h, notice, say, set } from "../dom.js";
import { isFiltered } from "../filter.js";
import { amount, estimate, estimateWithError, exactly, number, percent } from "../format.js";
import { isOfHeap, nothingOf, unitOf } from "../kinds.js";
import { change, state } from "../state.js";
import { bar, ESTIMATE, pages, Table } from "../table.js";
import { fileName } from "../tree/legend.js";
import { label, noSymbol, SELF, TOTAL } from "../glossary.js";

const LIMIT = 100;

/** @typedef {import("../api.js").FunctionRow} FunctionRow */

/** The title and text of an empty list. @returns {[string, string]} */
function none(/** @type {string} */ kind, /** @type {import("../api.js").Functions} */ { report }) {
  if (state.q) return ["No functions", "Nothing matches the search."];
  const [title, why] = nothingOf(kind, report.total, "No stack has memory of this kind.", isFiltered());
  return [isOfHeap(kind) ? title : "No functions", why];
}

export class Functions {
  /** @param {{ open: (row: FunctionRow) => void, about: string }} what what a click does */
  constructor({ open, about }) {
    this.about = about;
    this.whole = 0;
    /** What the figures count. @type {import("../kinds.js").Unit} */
    this.unit = "bytes";
    /** The settings of the rows that are shown or asked for. */
    this.asked = "";
    const columns = [
      { name: "self", label: "Self", title: SELF, numeric: true, rem: ESTIMATE, by: () => 0, cell: (/** @type {FunctionRow} */ row) => bar(estimate(row.self, row.self_error, this.unit), row.self, this.whole), tip: (/** @type {FunctionRow} */ row) => exactly(row.self, row.self_error, this.unit) },
      { name: "total", label: "Total", title: TOTAL, numeric: true, rem: ESTIMATE, by: () => 0, cell: (/** @type {FunctionRow} */ row) => bar(estimate(row.total, row.total_error, this.unit), row.total, this.whole, "second"), tip: (/** @type {FunctionRow} */ row) => exactly(row.total, row.total_error, this.unit) },
      { name: "share", label: "Total %", title: "Share of everything in this view", numeric: true, cell: (/** @type {FunctionRow} */ row) => percent(row.total, this.whole) },
      { name: "name", label: "Function", wide: true, by: () => "", cell: (/** @type {FunctionRow} */ row) => row.function ?? noSymbol(row.file) },
      { name: "module", label: "File", cell: (/** @type {FunctionRow} */ row) => fileName(row.file, row.category.startsWith("own"), row.line), tip: (/** @type {FunctionRow} */ row) => row.path },
    ];
    this.table = new Table(columns, {
      label: `Functions. ${about}`,
      sort: (sort) => change({ sort, page: "0" }),
      key: (row) => `${row.path}\n${row.function}`,
      open,
    });
    this.note = h("p", { class: "note" });
    this.pages = h("div", { class: "pages" });
    this.stage = h("div", { class: "stage" }, this.table.element);
    this.element = h("div", { class: "graph" }, this.note, this.stage, this.pages);
  }

  get settings() {
    return JSON.stringify([state.sort, state.page, state.kind, state.q]);
  }

  async refresh() {
    this.asked = this.settings;
    const sort = /^-?(self|total|name)$/.test(state.sort) ? state.sort : "-self";
    const offset = Math.max(0, Number(state.page) || 0) * LIMIT;
    const { kind } = state;
    const page = await api.functions({ sort: sort.replace("-", ""), order: sort.startsWith("-") ? "desc" : "asc", offset, limit: LIMIT, kind, search: state.q });
    const unit = unitOf(kind);
    [this.whole, this.unit] = [page.total, unit];
    const matched = state.q ? ` that match, with ${amount(page.matched, unit)} of their own` : "";
    const rest = [page.not_observed && `${amount(page.not_observed, unit)} has no stack`, page.unmapped && `${amount(page.unmapped, unit)} is in code of no file`].filter(Boolean).join(", ");
    say(this.note, `${label(kind)}: ${estimateWithError(page.total, page.report.total_error?.[kind] ?? 0, unit)}${rest ? ` (${rest})` : ""}. ${number(page.count)} ${page.count === 1 ? "function" : "functions"}${matched}. ${this.about}`);
    set(this.note, { "data-total": page.total, "data-count": page.count });
    if (page.rows.length === 0) fill(this.stage, notice(...none(kind, page)));
    else if (!this.stage.contains(this.table.element)) fill(this.stage, this.table.element);
    this.table.show(page.rows, sort);
    pages(this.pages, { offset, shown: page.rows.length, count: page.count, limit: LIMIT });
    return page.report;
  }

  /** Only other settings need another request. */
  async show() {
    return this.asked === this.settings ? null : this.refresh();
  }
}
