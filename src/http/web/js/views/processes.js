// The followed processes or their control groups, with their memory. A click on a row selects it for all views.

import { api } from "../api.js";
import { h } from "../dom.js";
import { amount, exactWithError, number } from "../format.js";
import { label } from "../glossary.js";
import { isHeapKind, unitOf } from "../kinds.js";
import { change, state } from "../state.js";
import { bar } from "../table.js";
import { List } from "./list.js";

/** @typedef {import("../api.js").ProcessRow} ProcessRow */
/** @typedef {import("../api.js").GroupRow} GroupRow */
/** @typedef {ProcessRow | GroupRow} Row */

/** A row's memory of the selected kind. */
const size = (/** @type {Row} */ row) => row.total[state.kind] ?? 0;
const isGroup = () => state.pby === "group";
/** Settings that are reset when other processes are selected. */
const RESET = { view: "flame", zoom: "", sel: "", page: "0", file: "", q: "", sort: "" };
/** A container's id as runtimes abbreviate it. */
const shortId = (/** @type {string | undefined} */ id) => (id ?? "").slice(0, 12);

/** The text that a search matches. */
const text = (/** @type {any} */ row) => [row.comm, row.pid, row.cgroup, row.container, row.pod].filter((part) => part !== undefined).join(" ");

export class Processes {
  constructor() {
    this.largest = 0;
    /** @type {import("../api.js").Processes | null} */
    this.reply = null;
    const memory = () => ({ name: "memory", label: "Memory", title: "Memory of the selected kind", numeric: true, by: size, cell: (/** @type {Row} */ row) => bar(amount(size(row), unitOf(state.kind)), size(row), this.largest), tip: (/** @type {Row} */ row) => exactWithError(size(row), 0, unitOf(state.kind)) });
    const where = [
      { name: "cgroup", label: "Control group", wide: true, by: (/** @type {Row} */ row) => row.cgroup ?? "", cell: (/** @type {Row} */ row) => row.cgroup ?? "" },
      { name: "container", label: "Container", by: (/** @type {Row} */ row) => row.container ?? "", cell: (/** @type {Row} */ row) => shortId(row.container), tip: (/** @type {Row} */ row) => row.container },
      { name: "pod", label: "Pod", by: (/** @type {Row} */ row) => row.pod ?? "", cell: (/** @type {Row} */ row) => row.pod ?? "" },
    ];
    const shared = { sort: "-memory", text, empty: "No process is followed." };
    this.processes = new List({
      ...shared,
      label: "Processes. Enter shows the memory of one.",
      columns: [
        memory(),
        { name: "comm", label: "Name", by: (/** @type {ProcessRow} */ row) => row.comm, cell: (/** @type {ProcessRow} */ row) => row.comm },
        { name: "pid", label: "Process", numeric: true, by: (/** @type {ProcessRow} */ row) => row.pid, cell: (/** @type {ProcessRow} */ row) => String(row.pid) },
        ...where,
      ],
      key: (/** @type {ProcessRow} */ row) => String(row.pid),
      open: (/** @type {ProcessRow} */ row) => change({ ...RESET, pid: String(row.pid), cgroup: "" }, true),
    });
    this.groups = new List({
      ...shared,
      label: "Control groups. Enter shows the memory of one.",
      columns: [memory(), { name: "processes", label: "Processes", numeric: true, by: (/** @type {GroupRow} */ row) => row.processes, cell: (/** @type {GroupRow} */ row) => number(row.processes) }, ...where],
      key: (/** @type {GroupRow} */ row) => row.cgroup,
      open: (/** @type {GroupRow} */ row) => change({ ...RESET, pid: "", cgroup: row.cgroup }, true),
    });
    this.element = h("div", { class: "graph" });
  }

  async refresh() {
    this.reply = await api.processes();
    this.show();
    return this.reply.report;
  }

  /** How pages that several processes map are counted, with the sum in PSS. */
  sharedPages(/** @type {Row[]} */ shown) {
    if (state.kind === "pss") return "A page that several processes map counts once.";
    if (isHeapKind(state.kind) || unitOf(state.kind) !== "bytes") return "";
    const each = "A page that several processes map counts for each of them";
    if (!this.reply?.report.pss_counted) return `${each}.`;
    const once = shown.reduce((total, row) => total + (row.total.pss ?? 0), 0);
    return `${each}; resident memory and mapped files with these pages counted once (PSS): ${amount(once, "bytes")}.`;
  }

  show() {
    if (!this.reply) return;
    const { rows, groups, ended } = this.reply;
    const excluded = ended.length > 0 ? ` ${number(ended.length)} recently ended processes are excluded.` : "";
    const describe = (/** @type {Row[]} */ shown) => {
      const sum = shown.reduce((total, row) => total + size(row), 0);
      const count = isGroup() ? `${number(shown.length)} control groups` : `${number(shown.length)} processes`;
      return `${label(state.kind)}: ${amount(sum, unitOf(state.kind))} in ${count}. ${this.sharedPages(shown)}${excluded}`;
    };
    this.largest = Math.max(0, ...(isGroup() ? groups : rows).map(size));
    this.element.replaceChildren(isGroup() ? this.groups.element : this.processes.element);
    if (isGroup()) this.groups.show(groups, describe, size);
    else this.processes.show(rows, describe, size);
  }
}
