// Functions at any depth of a stack.

import { api } from "../api.js";
import { isFiltered } from "../filter.js";
import { amount, estimate, estimateWithError, exactWithError, number, percent } from "../format.js";
import { functionName, label, SELF, TOTAL } from "../glossary.js";
import { emptyText, isHeapKind, unitOf } from "../kinds.js";
import { state } from "../state.js";
import { bar, ESTIMATE_REM } from "../table.js";
import { colouredFile } from "../tree/legend.js";
import { PagedTable } from "./paged_table.js";

/** @typedef {import("../api.js").FunctionRow} FunctionRow */

/** The title and the text of an empty list. */
function emptyList(/** @type {string} */ kind, /** @type {import("../api.js").Functions} */ { report }) {
  if (state.q) return ["No functions", "No function matches the search."];
  const [title, why] = emptyText(kind, report.total, "No stack has memory of this kind.", isFiltered());
  return [isHeapKind(kind) ? title : "No functions", why];
}

/** @extends {PagedTable<FunctionRow>} */
export class Functions extends PagedTable {
  /** @param {{ open: (row: FunctionRow) => void, about: string }} options `about` describes the effect of a click */
  constructor({ open, about }) {
    super([
      { name: "self", label: "Self", title: SELF, numeric: true, rem: ESTIMATE_REM, by: () => 0, cell: (row) => bar(estimate(row.self, row.self_error, this.unit), row.self, this.whole), tip: (row) => exactWithError(row.self, row.self_error, this.unit) },
      { name: "total", label: "Total", title: TOTAL, numeric: true, rem: ESTIMATE_REM, by: () => 0, cell: (row) => bar(estimate(row.total, row.total_error, this.unit), row.total, this.whole, "second"), tip: (row) => exactWithError(row.total, row.total_error, this.unit) },
      { name: "share", label: "Total %", title: "Share of everything in this view", numeric: true, cell: (row) => percent(row.total, this.whole) },
      { name: "name", label: "Function", wide: true, by: () => "", cell: functionName },
      { name: "module", label: "File", cell: (row) => colouredFile(row.file, row.category.startsWith("own"), row.line), tip: (row) => row.path },
    ], { label: `Functions. ${about}`, key: (row) => `${row.path}\n${row.function}`, open }, ["sort", "page", "kind", "q"]);
    this.about = about;
    this.whole = 0;
    /** The unit of the figures. @type {import("../kinds.js").Unit} */
    this.unit = "bytes";
  }

  /** @override */
  async refresh() {
    const { kind } = state;
    const page = await api.functions({ ...this.parameters("-self"), kind, search: state.q });
    const unit = unitOf(kind);
    [this.whole, this.unit] = [page.total, unit];
    const matched = state.q ? ` that match, with ${amount(page.matched, unit)} self` : "";
    const rest = [page.not_observed && `${amount(page.not_observed, unit)} has no stack`, page.unmapped && `${amount(page.unmapped, unit)} is in code of no file`].filter(Boolean).join(", ");
    const total = estimateWithError(page.total, page.report.total_error?.[kind] ?? 0, unit);
    const note = `${label(kind)}: ${total}${rest ? ` (${rest})` : ""}. ${number(page.count)} ${page.count === 1 ? "function" : "functions"}${matched}. ${this.about}`;
    this.showRows(page, page.total, note, emptyList(kind, page));
    return page.report;
  }
}
