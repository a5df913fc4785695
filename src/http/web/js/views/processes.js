// The followed processes, those that have ended, or their control groups, with their memory. A click on a row selects it for all
// views; of a process that has ended, its peak.

import { api } from "../api.js";
import { h, isNarrow } from "../dom.js";
import { amount, clock, duration, exactWithError, number } from "../format.js";
import { label } from "../glossary.js";
import { isHeapKind, unitOf } from "../kinds.js";
import { change, state } from "../state.js";
import { bar } from "../table.js";
import { List } from "./list.js";

/** @typedef {import("../api.js").ProcessRow} ProcessRow */
/** @typedef {import("../api.js").GroupRow} GroupRow */
/** @typedef {import("../api.js").EndedRow} EndedRow */
/** @typedef {ProcessRow | GroupRow} Row */

/** A row's memory of the selected kind. */
const size = (/** @type {Row} */ row) => row.total[state.kind] ?? 0;
const isGroup = () => state.pby === "group";
const isEnded = () => state.pby === "ended";
/** The most resident memory that a process had. */
const highest = (/** @type {ProcessRow} */ { peak }) => Math.max(peak?.rss ?? 0, peak?.high_water ?? 0);
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
    const where = (/** @type {boolean} */ wide) => [
      { name: "cgroup", label: "Control group", wide, by: (/** @type {Row} */ row) => row.cgroup ?? "", cell: (/** @type {Row} */ row) => row.cgroup ?? "" },
      { name: "container", label: "Container", by: (/** @type {Row} */ row) => row.container ?? "", cell: (/** @type {Row} */ row) => shortId(row.container), tip: (/** @type {Row} */ row) => row.container },
      { name: "pod", label: "Pod", by: (/** @type {Row} */ row) => row.pod ?? "", cell: (/** @type {Row} */ row) => row.pod ?? "" },
    ];
    const shared = { sort: "-memory", text, empty: "No process is followed." };
    const peak = {
      name: "peak",
      label: "Peak",
      title: "The most resident memory (anonymous, shared, of files) that the process had",
      numeric: true,
      by: highest,
      cell: (/** @type {ProcessRow} */ row) => (row.peak ? amount(highest(row), "bytes") : "unknown"),
      tip: (/** @type {ProcessRow} */ { peak }) => peak && `${amount(peak.rss, "bytes")} by stack${peak.high_water ? `, of ${amount(peak.high_water, "bytes")} VmHWM` : ""}, ${duration(peak.after_ms)} after the start`,
    };
    const named = [
      // On a narrow screen, it comes first.
      { name: "comm", label: "Name", wide: isNarrow(), by: (/** @type {ProcessRow} */ row) => row.comm, cell: (/** @type {ProcessRow} */ row) => row.comm },
      { name: "pid", label: "Process", numeric: true, by: (/** @type {ProcessRow} */ row) => row.pid, cell: (/** @type {ProcessRow} */ row) => String(row.pid) },
    ];
    this.processes = new List({
      ...shared,
      label: "Processes. Enter shows the memory of one.",
      columns: [
        memory(),
        peak,
        ...named,
        ...where(!isNarrow()),
      ],
      key: (/** @type {ProcessRow} */ row) => String(row.pid),
      open: (/** @type {ProcessRow} */ row) => change({ ...RESET, pid: String(row.pid), cgroup: "" }, true),
    });
    this.ended = new List({
      ...shared,
      sort: "-peak",
      empty: "No process has ended.",
      label: "Processes that have ended. Enter shows the peak of one.",
      columns: [
        { ...peak, cell: (/** @type {EndedRow} */ row) => bar(row.peak ? amount(highest(row), "bytes") : "unknown", highest(row), this.largest) },
        { ...memory(), label: "Last", title: "Memory of the selected kind at the last scan", cell: (/** @type {EndedRow} */ row) => amount(size(row), unitOf(state.kind)) },
        ...named,
        { name: "ended", label: "Ended", numeric: true, by: (/** @type {EndedRow} */ row) => row.ended, cell: (/** @type {EndedRow} */ row) => clock(row.ended) },
        ...where(!isNarrow()),
      ],
      key: (/** @type {EndedRow} */ row) => `${row.pid} ${row.ended}`,
      open: (/** @type {EndedRow} */ row) => change({ ...RESET, pid: String(row.pid), cgroup: "", mark: "peak" }, true),
    });
    this.groups = new List({
      ...shared,
      label: "Control groups. Enter shows the memory of one.",
      columns: [memory(), { name: "processes", label: "Processes", numeric: true, by: (/** @type {GroupRow} */ row) => row.processes, cell: (/** @type {GroupRow} */ row) => number(row.processes) }, ...where(true)],
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
    const { rows, groups, ended, ended_unscanned } = this.reply;
    if (isEnded()) return this.showEnded(ended, ended_unscanned);
    const excluded = ended.length > 0 ? ` ${number(ended.length)} recently ended processes are excluded.` : "";
    const describe = (/** @type {Row[]} */ shown) => {
      const sum = shown.reduce((total, row) => total + size(row), 0);
      const [one, many] = isGroup() ? ["control group", "control groups"] : ["process", "processes"];
      const count = `${number(shown.length)} ${shown.length === 1 ? one : many}`;
      return `${label(state.kind)}: ${amount(sum, unitOf(state.kind))} in ${count}. ${this.sharedPages(shown)}${excluded}`;
    };
    this.largest = Math.max(0, ...(isGroup() ? groups : rows).map(size));
    this.element.replaceChildren(isGroup() ? this.groups.element : this.processes.element);
    if (isGroup()) this.groups.show(groups, describe, size);
    else this.processes.show(rows, describe, size);
  }

  showEnded(/** @type {EndedRow[]} */ rows, /** @type {number} */ unscanned) {
    this.largest = Math.max(0, ...rows.map(highest));
    this.element.replaceChildren(this.ended.element);
    const more = unscanned > 0 ? ` ${number(unscanned)} more ended before memprof had read their memory.` : "";
    const describe = (/** @type {EndedRow[]} */ shown) => `${number(shown.length)} processes have ended in the last ten minutes.${more} A click on one shows its peak by stack, as long as that is kept: those of the processes that had the most are.`;
    this.ended.show(rows, describe, highest);
  }
}
