// The top of the page: the target, and figures of the report that the view shows: totals by kind, whether they add up, and
// losses.

import { fill, h, say, set } from "./dom.js";
import { bytes, clock, estimateWithError, exact, exactly, number } from "./format.js";
import { isOfHeap, KINDS, unitOf } from "./kinds.js";
import { awaited, label, lastProfile, meaning, OUTSIDE, reason } from "./glossary.js";

/** @typedef {import("./api.js").Summary} Summary */
/** @typedef {import("./api.js").Report} Report */

const at = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Shows the target. */
export function showTarget(/** @type {Summary} */ { target, oom_kills }) {
  delete document.body.dataset.waiting;
  const more = target.pids.length - 1;
  say(at("target"), `${target.comm} (pid ${target.pid})${more > 0 ? ` and ${more} more` : ""}`);
  document.title = `${target.comm} – memprof`;
  const killed = oom_kills.rows.find((row) => row.pid === target.pid);
  if (killed) return chip("alive", "bad", "killed: out of memory", `Killed at ${clock(killed.killed)}. This is ${lastProfile(killed)}.`);
  chip("alive", target.alive ? "good" : "warn", target.alive ? "running" : "ended, last profile", more > 0 ? `Followed processes: ${target.pids.join(", ")}` : "");
}

/** Shows the figures of the report that the view shows; `summary`, perhaps of another report, explains them. */
export function showFigures(/** @type {Report} */ report, /** @type {Summary} */ summary) {
  totals(report);
  sum(report);
  missing(report, summary);
  still(report);
  say(at("taken"), `as of ${clock(report.taken)}`);
}

/** Shows whether the target was frozen, or that freezing failed. */
function still(/** @type {Summary["report"]} */ { stopped_us, stopped_in_turn, freeze_error, exact }) {
  if (freeze_error !== null) return chip("still", "warn", "not frozen", freeze_error);
  const time = stopped_us === null ? "" : `frozen for ${(stopped_us / 1000).toFixed(1)} ms`;
  if (stopped_in_turn) return chip("still", "good", `one after the other, ${time.replace("for", "for up to")}`, "Each process was frozen for its own page scan, because freezing all of them together would have taken longer than --max-freeze. The figures of each process are exact, but the sums do not show a single moment.");
  const words = exact ? `exact: ${time}` : time;
  chip("still", exact ? "good" : "warn", words, "The target was frozen for the page scan" + (exact ? ", so all figures show one moment and equal the kernel's own figures." : "."));
}

/** Shows that the selected mark or process does not exist (any more), and why. */
export function showGone(/** @type {string} */ why) {
  chip("alive", "warn", "no longer available", why);
}

/** Shows that there is no report yet, and what is awaited. What needs a report is not offered (base.css). */
export function showWaiting(/** @type {string} */ why) {
  document.body.dataset.waiting = "";
  const text = awaited(why);
  say(at("target"), text);
  document.title = `${text} – memprof`;
  chip("alive", "warn", "no report yet", "");
}

function chip(/** @type {string} */ id, /** @type {string} */ kind, /** @type {string} */ text, /** @type {string} */ title) {
  const element = at(id);
  element.className = `chip ${kind}`;
  say(element, text);
  set(element, { title: title || null });
}

/** The kinds of the heap that have a total here; the others are a choice away. */
const HEAP = ["inuse_space", "alloc_space"];

function totals(/** @type {Report} */ report) {
  // Page tables are a kernel figure without stacks.
  const total = /** @type {Record<string, number>} */ ({ ...report.total, page_tables: report.page_tables });
  const box = at("totals");
  // Rare kinds are shown only if they are not zero.
  const kinds = KINDS.map(({ name }) => name).filter((kind) => ["resident", "anon", "cache", ...(report.heap_counted ? HEAP : [])].includes(kind) || (kind !== "all" && !isOfHeap(kind) && total[kind] > 0));
  const shown = [...kinds, ...OUTSIDE.map(([name]) => name)];
  const signature = shown.join();
  if (box.dataset.kinds !== signature) {
    box.dataset.kinds = signature;
    const swatch = (/** @type {string} */ kind) => h("i", { class: `swatch ${kind}` });
    fill(box, ...shown.map((kind) => h("div", { class: "total", "data-kind": kind, title: meaning(kind) }, h("dt", {}, !["resident", "pss", "page_tables"].includes(kind) && swatch(kind), label(kind)), h("dd", {}))));
  }
  for (const kind of shown) {
    const amount = /** @type {HTMLElement} */ (box.querySelector(`[data-kind="${kind}"] dd`));
    const [figure, error, unit] = [total[kind] ?? 0, report.total_error?.[kind] ?? 0, unitOf(kind)];
    // The error is smaller: it must not look like a part of the figure.
    const whole = estimateWithError(figure, error, unit);
    const [text, margin] = whole.split(" ± ");
    if (amount.textContent !== whole) fill(amount, text, margin && h("small", {}, ` ± ${margin}`));
    set(amount, { title: exactly(figure, error, unit), "data-bytes": figure });
  }
}

/** Explanations of the verdicts on the sum. */
const VERDICTS = /** @type {Record<string, string>} */ ({
  equal: "All rows add up to the kernel's own figure, to the byte.",
  between: "The target changed its memory during the page scan: the sum lies between the kernel's figures before and after it.",
  below: "The sum lies below both of the kernel's figures. The target changes its memory, or the kernel's counters lag behind.",
  above: "The sum lies above both of the kernel's figures. The target changes its memory, or the kernel's counters lag behind.",
  incomplete: "Processes of the target are missing from the sum and from the kernel's figures shown here; the losses say why.",
});

function sum(/** @type {Report} */ { agreement }) {
  const { verdict, resident, low, high } = agreement;
  const equal = verdict === "equal";
  const badge = at("sum");
  badge.className = `badge ${equal ? "good" : "warn"}`;
  // By how much the sum can be off: two figures that differ by a few pages would look the same.
  const texts = /** @type {Record<string, string>} */ ({
    equal: "✓ sum equals kernel",
    between: `sum within ${bytes(high - low)} of kernel`,
    below: `sum ${bytes(low - resident)} below kernel`,
    above: `sum ${bytes(resident - high)} above kernel`,
    incomplete: "processes missing",
  });
  say(badge, texts[verdict]);
  const lines = [VERDICTS[verdict], `Sum of all rows: ${exact(resident)}`, `Kernel, RssAnon + RssShmem: ${exact(low)}${low === high ? "" : ` to ${exact(high)}`}`];
  set(badge, { title: lines.join("\n"), "data-verdict": verdict });
}

function missing(/** @type {Report} */ report, /** @type {Summary} */ { outcomes, not_observed, names_advice }) {
  const lost = report.losses.reduce((total, loss) => total + loss.count, 0);
  const rows = (/** @type {import("./api.js").Loss[]} */ losses) => losses.map(({ what, count }) => `${number(count)} × ${what}`).join("\n");
  const list = rows(report.losses) || "No event, stack or page record was lost since memprof attached.";
  // Left out on purpose: no figure is wrong for it.
  const without = report.not_counted.length ? `\nNot counted, in no figure here:\n${rows(report.not_counted)}` : "";
  const { all, unwalked } = report.faults ?? { all: 0, unwalked: 0 };
  if (report.faults === null) chip("sampled", "warn", "page faults not hooked", "memprof runs with --stacks off: memory has the stack of the call that mapped it. The sums are exact.");
  else chip("sampled", "warn", `estimates: ${(100 * (all - unwalked) / all).toFixed(1)} % of faults walked`, `The stacks of ${number(all - unwalked)} of ${number(all)} page faults were walked (--stacks). The sums are exact; bytes by stack are estimates.`);
  at("sampled").hidden = report.faults !== null && unwalked === 0;
  chip("losses", lost ? "bad" : "good", lost ? `${number(lost)} lost` : "nothing lost", list + without);
  const partial = outcomes.filter((row) => !row.complete && row.stacks > 0);
  const why = partial.map((row) => `${row.outcome}: ${number(row.stacks)} stacks, ${bytes(row.bytes)}`).join("\n");
  const cut = report.incomplete.all;
  chip("partial", cut ? "warn" : "good", cut ? `${bytes(cut)} under incomplete stacks` : "all stacks complete", `Stacks whose unwinding did not reach the outermost frame.\n${why}`);
  const unseen = report.not_observed.all;
  const reasons = not_observed.map((row) => `${reason(row.reason)}: ${bytes(row.bytes.all)}`).join("\n");
  chip("unseen", "warn", `${bytes(unseen)} without a stack`, `Part of the totals; the graph shows it by mapping.\n${reasons}`);
  at("unseen").hidden = unseen === 0;
  chip("names", "warn", "names missing", names_advice ?? "");
  at("names").hidden = names_advice === null;
}

/** Shows the state of the connection. */
export function showConnection(/** @type {"live" | "lost" | "paused" | "ended" | "loading" | "polling" | "saved"} */ how, /** @type {string} */ why) {
  const words = { live: "live", polling: "live", lost: "connection lost", paused: "paused", ended: "target ended", loading: "connecting…", saved: `saved on ${new Date(taken.totals).toLocaleDateString()}` };
  const kinds = { live: "good", polling: "good", lost: "bad", paused: "warn", ended: "warn", loading: "", saved: "" };
  chip("connection", kinds[how], words[how], why);
  const banner = at("banner");
  banner.hidden = how !== "lost";
  if (how === "lost") fill(banner, h("strong", {}, "memprof does not answer. "), `This is the last report. Retrying every few seconds. ${why}`);
}

