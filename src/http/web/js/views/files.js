// Page cache by file, and the stacks of a file.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { bytes, exact, number } from "../format.js";
import { change, state } from "../state.js";
import { bar, pathCell } from "../table.js";
import { Graph } from "./graph.js";
import { List } from "./list.js";

/** @typedef {import("../api.js").FileRow} FileRow */

/** A file's path, or the inode and the device if the path is unknown. */
function pathText(/** @type {FileRow} */ row) {
  return row.path === null ? `[file ${row.inode} on device ${row.device}, no longer open]` : row.path + (row.deleted ? " (deleted)" : "");
}

export class Files {
  constructor() {
    this.largest = 0;
    this.list = new List({
      label: "Page cache by file. Enter shows the stacks that brought a file in.",
      columns: [
        { name: "cached", label: "Page cache", title: "Pages of the file that the target's own I/O brought in and that remain cached", numeric: true, by: (/** @type {FileRow} */ row) => row.cached, cell: (/** @type {FileRow} */ row) => bar(bytes(row.cached), row.cached, this.largest), tip: (/** @type {FileRow} */ row) => exact(row.cached) },
        { name: "stacks", label: "Stacks", title: "Number of distinct call stacks that brought the file in", numeric: true, by: (/** @type {FileRow} */ row) => row.stacks, cell: (/** @type {FileRow} */ row) => number(row.stacks) },
        { name: "path", label: "File", wide: true, by: pathText, cell: (/** @type {FileRow} */ row) => pathCell(pathText(row)), tip: pathText },
      ],
      sort: "-cached",
      key: (row) => row.id,
      text: pathText,
      empty: "The target's own reads, writes and file mappings have left nothing in the page cache since memprof attached.",
      open: (row) => change({ file: row.id, zoom: "", sel: "", q: "" }, true),
    });
    this.stacks = new Graph({ draw: "flame", kind: "cache", fetch: () => api.fileTree(state.file, state), empty: "No stack has page cache of this file now." });
    this.title = h("h2", { class: "sub" });
    this.back = h("button", { class: "small", onclick: () => change({ file: "" }, true) }, "← all files");
    this.element = h("div", { class: "graph" });
    /** @type {FileRow[]} */
    this.rows = [];
  }

  async refresh() {
    const { report, rows, total, other } = await api.files();
    this.rows = rows;
    this.other = other;
    this.whole = total;
    const shown = state.file ? await this.stacks.refresh() : null;
    this.show();
    return shown ?? report;
  }

  get graph() {
    return state.file ? this.stacks : null;
  }

  show() {
    if (!state.file) {
      replace(this.element, this.list.element);
      this.largest = Math.max(0, ...this.rows.map((row) => row.cached));
      this.list.show(this.rows, (shown) => `Page cache that the target's own I/O brought in: ${bytes(this.whole ?? 0)} in ${number(shown.length)} ${shown.length === 1 ? "file" : "files"}. ${this.other ? `Files beyond the table's limit: ${bytes(this.other)}. ` : ""}${shown.length ? "Click a file to see the stacks that brought it in." : ""}`, (row) => row.cached);
      return;
    }
    const file = this.rows.find((row) => row.id === state.file);
    replace(this.title, this.back, ` ${file ? pathText(file) : state.file}`);
    replace(this.element, this.title, this.stacks.element);
    this.stacks.show();
  }
}
