// The reliability of the figures, and the cost of memprof.

import { api } from "../api.js";
import { card, h, replace } from "../dom.js";
import { bytes, clock, duration, exact, number, percent } from "../format.js";
import { lastProfile, noStackReason } from "../glossary.js";

/** @typedef {import("../api.js").Health} Health */
/** @typedef {import("../api.js").Summary} Summary */

function table(/** @type {string[]} */ head, /** @type {any[][]} */ rows, /** @type {string} */ empty) {
  if (!rows.length) return h("p", { class: "good-text" }, empty);
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ...head.map((text, i) => h("th", { scope: "col", class: i ? "num" : "" }, text)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: i ? "num" : "" }, cell))))));
}

function lossRows(/** @type {import("../api.js").Loss[]} */ losses) {
  return losses.map(({ what, count }) => [what, number(count)]);
}

/** The sums compared with the kernel's figures. */
function agreementCard(/** @type {Summary} */ { agreement, kernel, total }) {
  const rows = /** @type {[string, string, (k: import("../api.js").Kernel) => number | undefined, number | null][]} */ ([
    ["Resident, anonymous and shared", "RssAnon + RssShmem in /proc/PID/status", (k) => k.rss_anon + k.rss_shmem, agreement.resident],
    ["Anonymous, by page-table walk", "Anonymous in /proc/PID/smaps_rollup", (k) => k.anonymous, total.anon],
    ["Mapped files", "RssFile in /proc/PID/status", (k) => k.rss_file, total.file],
    ["Swapped", "VmSwap in /proc/PID/status", (k) => k.swap, total.swap],
    ["Page tables (not resident memory)", "VmPTE in /proc/PID/status", (k) => k.page_tables, null],
  ]);
  return card("Sum compared with the kernel", "The kernel's own figures immediately before and after the page scan, and the sum of memprof's rows. The figures differ by the changes of a running target in between. memprof skips the page-table walk while a large target runs, because the walk would stall the target.",
    [table(["figure", "before", "after", "sum of rows"], rows.map(([name, source, figure, sum]) => [h("span", { title: source }, name), size(figure(kernel.before)), size(figure(kernel.after)), size(sum)]), "")]);
}

/** Bytes, with the exact number as a tooltip; a dash if the number is unknown. */
function size(/** @type {number | null | undefined} */ count) {
  return count === null || count === undefined ? "–" : h("span", { title: exact(count) }, bytes(count));
}

/** The memory that is charged to the followed control group. */
function cgroupCard(/** @type {import("../api.js").Cgroup} */ group) {
  const parts = (/** @type {import("../api.js").CgroupRow} */ row) => row.parts.map((part) => `${part.name}: ${bytes(part.bytes)}`).join("\n");
  const total = group.usage === null ? group.without_total : `${bytes(group.usage)} are charged to ${group.path} and the groups below it (${group.usage_file}).`;
  const peak = group.peak ? ` The most since the group was created was ${bytes(group.peak)}.` : "";
  const kills = group.oom_kills ? ` The out-of-memory killer has killed ${number(group.oom_kills)} of its processes since the group was created.` : "";
  return card("Control group", `${total}${peak}${kills} The rows add up to the charged memory. The kernel charges a page once, to the group of the process that touched it first. memprof counts a page for each process that maps it.`,
    [table(["row", "kernel", "memprof", "difference", "explanation"], group.rows.map((row) => [h("span", { title: parts(row) || null }, row.name), size(row.charged), size(row.memprof), size(row.difference), row.note]), "No figures.")]);
}

/** Processes that the OOM killer killed, the newest first. */
function oomKillsCard(/** @type {Summary["oom_kills"]} */ { count, rows }) {
  const containerOf = (/** @type {import("../api.js").OomKill} */ row) => row.container ?? row.cgroup ?? null;
  const more = count > rows.length ? ` The table lists the newest of ${number(count)}.` : "";
  return card("Killed: out of memory", `Processes that the kernel killed because memory was exhausted. Marks on the timeline hold the last profiles of up to four of them.${more}`,
    [table(["process", "killed at", "resident", "from"], rows.slice().reverse().map((row) => [h("span", { title: containerOf(row) }, `${row.comm} (pid ${row.pid})`), clock(row.killed), size(row.last?.resident), lastProfile(row)]), "")]);
}

/** The probe's tables: [label, contents] by their names in the API. */
const TABLES = /** @type {Record<string, [string, string]>} */ ({
  pages: ["Pages with a stack", "Chunks of neighbouring pages whose stacks are recorded"],
  cache: ["Cached file pages with a stack", "Chunks of neighbouring pages of files whose stacks are recorded"],
  stacks: ["Stacks", "Distinct call stacks"],
  unwind_pages: ["Unwind rules", "Pages of rules that lead from a frame to its caller"],
  procs: ["Processes", "Followed processes"],
  kernel_pages: ["Kernel pages with a stack", "Kernel memory allocated for the target"],
});

function tableName(/** @type {string} */ name) {
  const [label, title] = TABLES[name] ?? [name.replaceAll("_", " "), ""];
  return h("span", { title: title || null }, label);
}

/** Optional parts of the probe, by their names in the API. */
const programName = (/** @type {string} */ name) => (name === "oom_kill" ? "kills by the OOM killer" : name.replaceAll("_", " "));

export class HealthView {
  constructor() {
    this.element = h("div", { class: "cards" });
  }

  async refresh() {
    const [health, summary, group] = await Promise.all([api.health(), api.selectedSummary().catch(() => null), api.cgroup().catch(() => null)]);
    this.showCards(health, summary, group?.cgroup ?? null);
    return summary?.report;
  }

  showCards(/** @type {Health} */ health, /** @type {Summary | null} */ summary, /** @type {import("../api.js").Cgroup | null} */ group) {
    const all = health.outcomes.reduce((sum, row) => sum + row.bytes, 0);
    const { own, scan } = health;
    const cards = [
      summary && summary.oom_kills.count > 0 && oomKillsCard(summary.oom_kills),
      summary && agreementCard(summary),
      group && cgroupCard(group),
      card("Outcomes of unwinding", "Complete: unwinding reached the outermost frame. The other stacks are truncated; the outcome is the reason.",
        [table(["outcome", "stacks", "memory", "share"], health.outcomes.map((row) => [row.outcome, number(row.stacks), bytes(row.bytes), percent(row.bytes, all)]), "No stack has been recorded yet.")]),
      card("Lost", "Events that did not fit into a table or a buffer, or could not be read, since memprof attached.",
        [
          table(["event", "count"], lossRows(health.losses), "✓ Nothing was lost."),
          health.not_counted.length > 0 && h("p", { class: "faint apart" }, "Not counted on purpose; the figures are right without it:"),
          health.not_counted.length > 0 && table(["memory", "count"], lossRows(health.not_counted), ""),
        ]),
      health.missing_programs.length > 0 && card("Not observed", "Parts of the probe that this kernel did not attach. The figures are right without them.",
        [table(["program", "reason"], health.missing_programs.map((row) => [programName(row.name), row.why]), "")]),
      summary && card("Memory without a stack", "The totals include this memory. Start the program under memprof to get a stack for all memory.",
        [table(["reason", "resident", "page cache", "mapped files"], summary.not_observed.map((row) => [noStackReason(row.reason), bytes(row.bytes.resident), bytes(row.bytes.cache), bytes(row.bytes.file)]), "✓ All memory has a stack.")]),
      card("Cost of memprof", "Resources of memprof itself, not of the target.", [table(["figure", "value"], [
        ["resident memory of memprof", bytes(own.rss)],
        ["CPU time since start", `${duration(own.cpu_ms)} of ${duration(own.uptime_ms)} (${percent(own.cpu_ms, own.uptime_ms)} of a core)`],
        ["duration of the newest page scan", scan ? duration(scan.duration_ms) : "none yet"],
        ["age of the newest page scan", scan ? duration(scan.age_ms) : "–"],
        ["version", health.version],
      ], "")]),
      card("Capacity in the kernel", "The fill levels of the probe’s tables. Entries that do not fit count as lost.",
        [table(["entries", "in use", "limit", "full"], health.maps.map((row) => [tableName(row.name), number(row.entries), number(row.capacity), percent(row.entries, row.capacity)]), "Unknown.")]),
    ];
    replace(this.element, ...cards);
  }

  show() {}
}
