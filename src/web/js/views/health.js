// How reliable the figures are, and memprof's own cost.

import { api } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, clock, exact, number, percent, span } from "../format.js";
import { lastProfile, reason } from "../glossary.js";

/** @typedef {import("../api.js").Health} Health */
/** @typedef {import("../api.js").Summary} Summary */

function table(/** @type {string[]} */ head, /** @type {any[][]} */ rows, /** @type {string} */ empty) {
  if (!rows.length) return h("p", { class: "good-text" }, empty);
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ...head.map((text, i) => h("th", { scope: "col", class: i ? "num" : "" }, text)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: i ? "num" : "" }, cell))))));
}

function counts(/** @type {import("../api.js").Loss[]} */ losses) {
  return losses.map(({ what, count }) => [what, number(count)]);
}

function card(/** @type {string} */ title, /** @type {string} */ text, /** @type {Element} */ content) {
  return h("section", { class: "card" }, h("h2", {}, title), h("p", { class: "faint" }, text), content);
}

function against(/** @type {Summary} */ { agreement, kernel, total }) {
  const rows = /** @type {[string, string, (k: import("../api.js").Kernel) => number | undefined, number | null][]} */ ([
    ["Resident, anonymous and shared", "RssAnon + RssShmem in /proc/PID/status", (k) => k.rss_anon + k.rss_shmem, agreement.resident],
    ["Anonymous, by page-table walk", "Anonymous in /proc/PID/smaps_rollup", (k) => k.anonymous, total.anon],
    ["Mapped files", "RssFile in /proc/PID/status", (k) => k.rss_file, total.file],
    ["Swapped", "VmSwap in /proc/PID/status", (k) => k.swap, total.swap],
    ["Page tables, not resident memory", "VmPTE in /proc/PID/status", (k) => k.page_tables, null],
  ]);
  return card("Sum compared with the kernel", "The kernel's own figures immediately before and after the page scan, and the sum of memprof's rows. They differ by what a running target does in between. The page-table walk is left out while a large target is running, because it would stall it.",
    table(["figure", "before", "after", "sum of rows"], rows.map(([name, source, of, sum]) => [h("span", { title: source }, name), size(of(kernel.before)), size(of(kernel.after)), size(sum)]), ""));
}

/** Bytes with their exact number as a tooltip; a dash if there are none. */
function size(/** @type {number | null | undefined} */ count) {
  return count === null || count === undefined ? "–" : h("span", { title: exact(count) }, bytes(count));
}

/** Bytes that may be negative. */
function signed(/** @type {number | null} */ count) {
  return count === null || count >= 0 ? size(count) : h("span", { title: exact(count) }, `−${bytes(-count)}`);
}

/** What is charged to the followed control group. */
function balance(/** @type {import("../api.js").Cgroup} */ group) {
  const parts = (/** @type {import("../api.js").CgroupRow} */ row) => row.parts.map((part) => `${part.name}: ${bytes(part.bytes)}`).join("\n");
  const total = group.usage === null ? group.without_total : `${bytes(group.usage)} are charged to ${group.path} and the groups below it (${group.usage_file}).`;
  const kills = group.oom_kills ? ` The out-of-memory killer has killed ${number(group.oom_kills)} of its processes since it was made.` : "";
  return card("Control group", `${total}${kills} The rows add up to that. The kernel charges a page to the group of the process that touched it first, once; memprof counts it for each process that maps it.`,
    table(["row", "kernel", "memprof", "difference", "what it is"], group.rows.map((row) => [h("span", { title: parts(row) || null }, row.name), signed(row.charged), size(row.memprof), signed(row.difference), row.note]), "No figures."));
}

/** Processes that were killed because memory had run out, the newest first. */
function killed(/** @type {Summary["oom_kills"]} */ { count, rows }) {
  const place = (/** @type {import("../api.js").OomKill} */ row) => row.container ?? row.cgroup ?? null;
  const more = count > rows.length ? ` These are the newest of ${number(count)}.` : "";
  return card("Killed: out of memory", `Processes that the kernel killed because memory had run out. A mark on the timeline keeps the last profile of each, up to four.${more}`,
    table(["process", "killed at", "resident", "in"], rows.slice().reverse().map((row) => [h("span", { title: place(row) }, `${row.comm} (pid ${row.pid})`), clock(row.killed), size(row.last?.resident), lastProfile(row)]), ""));
}

/** What the probe's tables hold, by their names in the API. */
const TABLES = /** @type {Record<string, [string, string]>} */ ({
  pages: ["Pages with a stack", "Chunks of neighbouring pages whose stacks are recorded"],
  cache: ["Cached file pages with a stack", "Chunks of neighbouring pages of files whose stacks are recorded"],
  stacks: ["Stacks", "Distinct call stacks"],
  unwind_pages: ["Unwind rules", "Pages of rules that tell how to get from a frame to its caller"],
  procs: ["Processes", "Followed processes"],
  kernel_pages: ["Kernel pages with a stack", "Kernel memory allocated for the target"],
});

function tableName(/** @type {string} */ name) {
  const [words, title] = TABLES[name] ?? [name.replaceAll("_", " "), ""];
  return h("span", { title: title || null }, words);
}

/** Optional parts of the probe, by their names in the API. */
const programName = (/** @type {string} */ name) => (name === "oom_kill" ? "kills because memory had run out" : name.replaceAll("_", " "));

export class HealthView {
  constructor() {
    this.element = h("div", { class: "cards" });
  }

  async refresh() {
    const [health, summary, group] = await Promise.all([api.health(), api.shown().catch(() => null), api.cgroup().catch(() => null)]);
    this.draw(health, summary, group?.cgroup ?? null);
    return summary?.report;
  }

  draw(/** @type {Health} */ health, /** @type {Summary | null} */ summary, /** @type {import("../api.js").Cgroup | null} */ group) {
    const all = health.outcomes.reduce((sum, row) => sum + row.bytes, 0);
    const { own, scan } = health;
    const cards = [
      summary && summary.oom_kills.count > 0 && killed(summary.oom_kills),
      summary && against(summary),
      group && balance(group),
      card("Outcomes of unwinding", "Complete: unwinding reached the outermost frame. The other stacks are truncated; the outcome says why.",
        table(["outcome", "stacks", "memory", "share"], health.outcomes.map((row) => [row.outcome, number(row.stacks), bytes(row.bytes), percent(row.bytes, all)]), "No stack has been seen yet.")),
      card("Lost", "Events that did not fit into a table or a buffer, or could not be read, since memprof attached.",
        h("div", {},
          table(["what", "count"], counts(health.losses), "✓ Nothing was lost."),
          health.not_counted.length > 0 && h("p", { class: "faint apart" }, "Not counted on purpose; no figure is wrong for it:"),
          health.not_counted.length > 0 && table(["what", "count"], counts(health.not_counted), ""))),
      health.missing_programs.length > 0 && card("Not seen", "Parts of the probe that this kernel did not attach. The figures are right without them.",
        table(["program", "why"], health.missing_programs.map((row) => [programName(row.name), row.why]), "")),
      summary && card("Memory without a stack", "Part of the totals. Start the program under memprof to get a stack for all memory.",
        table(["reason", "resident", "page cache", "mapped files"], summary.not_observed.map((row) => [reason(row.reason), bytes(row.bytes.resident), bytes(row.bytes.cache), bytes(row.bytes.file)]), "✓ All memory has a stack.")),
      card("Cost of memprof", "Resources of memprof itself, not of the target.", table(["figure", "value"], [
        ["resident memory of memprof", bytes(own.rss)],
        ["CPU time since start", `${span(own.cpu_ms)} of ${span(own.uptime_ms)} (${percent(own.cpu_ms, own.uptime_ms)} of a core)`],
        ["duration of the newest page scan", scan ? span(scan.duration_ms) : "none yet"],
        ["age of the newest page scan", scan ? span(scan.age_ms) : "–"],
        ["version", health.version],
      ], "")),
      card("Room in the kernel", "How full the tables of the probe are. What does not fit is counted as lost.",
        table(["entries", "in use", "limit", "full"], health.maps.map((row) => [tableName(row.name), number(row.entries), number(row.capacity), percent(row.entries, row.capacity)]), "Unknown.")),
    ];
    fill(this.element, ...cards);
  }

  show() {}
}
