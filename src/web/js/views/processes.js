// The followed processes, or their control groups: what each holds, and its own trees.

import { api } from "../api.js";
import { h } from "../dom.js";
import { amount, exactly, number } from "../format.js";
import { isOfHeap, unitOf } from "../kinds.js";
import { change, state } from "../state.js";
import { bar } from "../table.js";
import { label } from "../glossary.js";
import { List } from "./list.js";

/** @typedef {import("../api.js").ProcessRow} ProcessRow */
/** @typedef {import("../api.js").GroupRow} GroupRow */
/** @typedef {ProcessRow | GroupRow} Row */

const isGroup = () => state.pby === "group";
/** The settings that end when other processes are shown. */
const FRESH = { view: "flame", zoom: "", sel: "", page: "0", file: "", q: "", sort: "" };
/** A container's id as runtimes show it. */
const short = (/** @type {string | undefined} */ id) => (id ?? "").slice(0, 12);

/** What a search looks at. */
const text = (/** @type {any} */ row) => [row.comm, row.pid, row.cgroup, row.container, row.pod].filter((part) => part !== undefined).join(" ");

export class Processes {
  constructor() {
    this.largest = 0;
    /** @type {import("../api.js").Processes | null} */
    this.reply = null;
    const figure = (/** @type {Row} */ row) => row.total[state.kind] ?? 0;
    const memory = () => ({ name: "memory", label: "Memory", title: "Of the chosen kind", numeric: true, by: figure, cell: (/** @type {Row} */ row) => bar(amount(figure(row), unitOf(state.kind)), figure(row), this.largest), tip: (/** @type {Row} */ row) => exactly(figure(row), 0, unitOf(state.kind)) });
    const where = [
      { name: "cgroup", label: "Control group", wide: true, by: (/** @type {Row} */ row) => row.cgroup ?? "", cell: (/** @type {Row} */ row) => row.cgroup ?? "" },
      { name: "container", label: "Container", by: (/** @type {Row} */ row) => row.container ?? "", cell: (/** @type {Row} */ row) => short(row.container), tip: (/** @type {Row} */ row) => row.container },
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
      open: (/** @type {ProcessRow} */ row) => change({ ...FRESH, pid: String(row.pid), cgroup: "" }, true),
    });
    this.groups = new List({
      ...shared,
      label: "Control groups. Enter shows the memory of one.",
      columns: [memory(), { name: "processes", label: "Processes", numeric: true, by: (/** @type {GroupRow} */ row) => row.processes, cell: (/** @type {GroupRow} */ row) => number(row.processes) }, ...where],
      key: (/** @type {GroupRow} */ row) => row.cgroup,
      open: (/** @type {GroupRow} */ row) => change({ ...FRESH, pid: "", cgroup: row.cgroup }, true),
    });
    this.element = h("div", { class: "graph" });
  }

  async refresh() {
    this.reply = await api.processes();
    this.show();
    return this.reply.report;
  }

  /** How pages count that several processes map, and the sum with the other way. */
  sharing(/** @type {Row[]} */ shown) {
    if (state.kind === "pss") return "A page that several processes map counts once.";
    if (isOfHeap(state.kind) || unitOf(state.kind) !== "bytes") return "";
    const each = "A page that several processes map counts for each of them";
    if (!this.reply?.report.pss_counted) return `${each}.`;
    const once = shown.reduce((total, row) => total + (row.total.pss ?? 0), 0);
    return `${each}; resident memory and mapped files with such pages counted once (PSS): ${amount(once, "bytes")}.`;
  }

  show() {
    if (!this.reply) return;
    const { rows, groups, ended } = this.reply;
    const gone = ended.length > 0 ? ` ${number(ended.length)} that ended lately are not among them.` : "";
    const tell = (/** @type {Row[]} */ shown) => {
      const sum = shown.reduce((total, row) => total + (row.total[state.kind] ?? 0), 0);
      const many = isGroup() ? `${number(shown.length)} control groups` : `${number(shown.length)} processes`;
      return `${label(state.kind)}: ${amount(sum, unitOf(state.kind))} in ${many}. ${this.sharing(shown)}${gone}`;
    };
    const size = (/** @type {Row} */ row) => row.total[state.kind] ?? 0;
    this.largest = Math.max(0, ...(isGroup() ? groups : rows).map(size));
    this.element.replaceChildren(isGroup() ? this.groups.element : this.processes.element);
    if (isGroup()) this.groups.fill(groups, tell, size);
    else this.processes.fill(rows, tell, size);
  }
}
