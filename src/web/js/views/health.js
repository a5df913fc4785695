// How reliable the figures are, and memprof's own cost.

import { api } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, number, percent, span } from "../format.js";
import { reason } from "../words.js";

/** @typedef {import("../api.js").Health} Health */
/** @typedef {import("../api.js").Summary} Summary */

function table(/** @type {string[]} */ head, /** @type {any[][]} */ rows, /** @type {string} */ empty) {
  if (!rows.length) return h("p", { class: "good-text" }, empty);
  return h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ...head.map((text, i) => h("th", { scope: "col", class: i ? "num" : "" }, text)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: i ? "num" : "" }, cell))))));
}

function card(/** @type {string} */ title, /** @type {string} */ text, /** @type {Element} */ content) {
  return h("section", { class: "card" }, h("h2", {}, title), h("p", { class: "faint" }, text), content);
}

function against(/** @type {Summary} */ { agreement, kernel, total }) {
  const rows = /** @type {[string, (k: import("../api.js").Kernel) => number | undefined, number | null][]} */ ([
    ["RssAnon + RssShmem (status)", (k) => k.rss_anon + k.rss_shmem, agreement.resident],
    ["Anonymous (smaps_rollup)", (k) => k.anonymous, total.anon],
    ["RssFile (status)", (k) => k.rss_file, total.file],
    ["VmSwap (status)", (k) => k.swap, total.swap],
    ["VmPTE (status): page tables, outside of RSS", (k) => k.page_tables, null],
  ]);
  return card("Sum compared with the kernel", "The kernel's own figures immediately before and after the page scan, and the sum of memprof's rows. They differ by what a running target does in between. smaps_rollup is not read while a large target is running, because that would stall it.",
    table(["figure", "before", "after", "sum of rows"], rows.map(([name, of, sum]) => [name, number(of(kernel.before) ?? NaN), number(of(kernel.after) ?? NaN), sum === null ? "–" : number(sum)]), ""));
}

export class HealthView {
  constructor() {
    this.element = h("div", { class: "cards" });
  }

  async refresh() {
    const [health, summary] = await Promise.all([api.health(), api.shown().catch(() => null)]);
    this.draw(health, summary);
    return summary?.report;
  }

  draw(/** @type {Health} */ health, /** @type {Summary | null} */ summary) {
    const all = health.outcomes.reduce((sum, row) => sum + row.bytes, 0);
    const { own, scan } = health;
    const cards = [
      summary && against(summary),
      card("Outcomes of unwinding", "Complete: unwinding reached the outermost frame. The other stacks are truncated; the outcome says why.",
        table(["outcome", "stacks", "memory", "share"], health.outcomes.map((row) => [row.outcome, number(row.stacks), bytes(row.bytes), percent(row.bytes, all)]), "No stack has been seen yet.")),
      card("Lost", "Events that did not fit into a table or a buffer, or could not be read, since memprof attached.",
        table(["what", "count"], health.losses.map(({ what, count }) => [what, number(count)]), "✓ Nothing was lost.")),
      summary && card("Memory without a stack", "Part of the totals. Start the program under memprof to get a stack for all memory.",
        table(["reason", "resident", "page cache", "mapped files"], summary.not_observed.map((row) => [reason(row.reason), bytes(row.bytes.resident), bytes(row.bytes.cache), bytes(row.bytes.file)]), "✓ All memory has a stack.")),
      card("Cost of memprof", "Resources of memprof itself, not of the target.", table(["figure", ""], [
        ["resident memory of memprof", bytes(own.rss)],
        ["CPU time since start", `${span(own.cpu_ms)} of ${span(own.uptime_ms)} (${percent(own.cpu_ms, own.uptime_ms)} of a core)`],
        ["duration of the newest page scan", scan ? span(scan.duration_ms) : "none yet"],
        ["age of the newest page scan", scan ? span(scan.age_ms) : "–"],
        ["version", health.version],
      ], "")),
      card("Tables in the kernel", "Fill levels of the probe's tables. What does not fit is counted as lost.",
        table(["table", "in use", "limit", "full"], health.maps.map((row) => [row.name, number(row.entries), number(row.capacity), percent(row.entries, row.capacity)]), "Unknown.")),
    ];
    fill(this.element, ...cards);
  }

  show() {}
}
