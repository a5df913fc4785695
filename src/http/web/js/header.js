// The top of the page: the target, and figures of the report that the view shows: totals by kind, their agreement with the
// kernel, and losses.

import { byId, h, hideBanner, replace, setProperties, setText, showBanner } from "./dom.js";
import { bytes, clock, estimateWithError, exact, exactWithError, number } from "./format.js";
import { definition, KERNEL_FIGURES, label, lastProfile, noStackReason, waitingText } from "./glossary.js";
import { isHeapKind, KINDS, unitOf } from "./kinds.js";

/** @typedef {import("./api.js").Summary} Summary */
/** @typedef {import("./api.js").Report} Report */

/** Shows the target. */
export function showTarget(/** @type {Summary} */ { target, oom_kills }) {
  delete document.body.dataset.waiting;
  const more = target.pids.length - 1;
  setText(byId("target"), `${target.comm} (pid ${target.pid})${more > 0 ? ` and ${more} more` : ""}`);
  document.title = `${target.comm} – memprof`;
  const killed = oom_kills.rows.find((row) => row.pid === target.pid);
  if (killed) return showChip("alive", "bad", "killed: out of memory", `Killed at ${clock(killed.killed)}. This is ${lastProfile(killed)}.`);
  showChip("alive", target.alive ? "good" : "warn", target.alive ? "running" : "ended, last profile", more > 0 ? `Followed processes: ${target.pids.join(", ")}` : "");
}

/** Shows when a saved report was taken. */
export function showSaved(/** @type {number | undefined} */ taken, /** @type {string} */ why) {
  showChip("connection", "", taken ? `saved on ${new Date(taken).toLocaleDateString()}` : "saved", why);
  hideBanner();
}

/** Shows the figures of the report that the view shows. The explanations are from `summary`, possibly of another report. */
export function showFigures(/** @type {Report} */ report, /** @type {Summary} */ summary) {
  showTotals(report);
  showAgreement(report);
  showLosses(report, summary);
  showFrozen(report);
  countNotes();
  setText(byId("taken"), `as of ${clock(report.taken)}`);
}

/** Counts the notes: what makes figures weaker. Notes on what is as it should be are in the list, but not counted. */
function countNotes() {
  const notes = [...byId("note-list").children].filter((note) => !note.hidden && note.matches(".warn, .bad") && note.textContent);
  const button = byId("notes");
  button.className = `badge ${notes.some((note) => note.matches(".bad")) ? "bad" : notes.length ? "warn" : ""}`;
  setText(button, notes.length ? `${notes.length} ${notes.length === 1 ? "note" : "notes"}` : "no notes");
}

/** Shows whether the target was frozen, or why freezing failed. */
function showFrozen(/** @type {Summary["report"]} */ { stopped_us, stopped_in_turn, freeze_error, exact }) {
  if (freeze_error !== null) return showChip("frozen", "warn", "not frozen", freeze_error);
  const ms = stopped_us === null ? "" : `${(stopped_us / 1000).toFixed(1)} ms`;
  if (stopped_in_turn) return showChip("frozen", "good", `frozen one by one, for up to ${ms}`, "Each process was frozen for its own page scan, because freezing all of them together would have taken longer than --max-freeze. The figures of each process are exact, but the sums do not show a single moment.");
  const text = ms && `frozen for ${ms}`;
  showChip("frozen", exact ? "good" : "warn", exact ? `exact: ${text}` : text, "The target was frozen for the page scan" + (exact ? ", so all figures show one moment and equal the kernel's own figures." : "."));
}

/** Shows why the selected mark or process does not exist. */
export function showGone(/** @type {string} */ why) {
  showChip("alive", "warn", "not available", why);
}

/** Shows why there is no report yet. base.css hides the elements that need a report. */
export function showWaiting(/** @type {string} */ why) {
  document.body.dataset.waiting = "";
  const text = waitingText(why);
  setText(byId("target"), text);
  document.title = `${text} – memprof`;
  showChip("alive", "warn", "no report yet", "");
}

function showChip(/** @type {string} */ id, /** @type {string} */ kind, /** @type {string} */ text, /** @type {string} */ title) {
  const element = byId(id);
  element.className = `chip ${kind}`;
  setText(element, text);
  setProperties(element, { title: title || null });
}

/** The kinds of the heap with a total here. */
const HEAP_TOTALS = ["inuse_space", "alloc_space"];

function showTotals(/** @type {Report} */ report) {
  const { anon, shmem, file } = report.total;
  const total = /** @type {Record<string, number>} */ ({ ...report.total, rss: anon + shmem + file, page_tables: report.page_tables });
  const box = byId("totals");
  // Rare kinds are shown only if they are not zero.
  const kinds = KINDS.map(({ name }) => name).filter((kind) => ["resident", "anon", "cache", ...(report.heap_counted ? HEAP_TOTALS : [])].includes(kind) || (kind !== "all" && !isHeapKind(kind) && total[kind] > 0));
  const [rss, ...others] = KERNEL_FIGURES.map(([name]) => name);
  const shown = [rss, ...kinds, ...others];
  const signature = shown.join();
  if (box.dataset.kinds !== signature) {
    box.dataset.kinds = signature;
    const swatch = (/** @type {string} */ kind) => h("i", { class: `swatch ${kind}` });
    replace(box, ...shown.map((kind) => h("div", { class: "total", "data-kind": kind, title: definition(kind) }, h("dt", {}, !["rss", "resident", "pss", "page_tables"].includes(kind) && swatch(kind), label(kind)), h("dd", {}))));
  }
  // Without shared memory, this is the anonymous one.
  /** @type {HTMLElement} */ (box.querySelector('[data-kind="resident"]')).hidden = shmem === 0;
  for (const kind of shown) {
    const amount = /** @type {HTMLElement} */ (box.querySelector(`[data-kind="${kind}"] dd`));
    const [figure, error, unit] = [total[kind] ?? 0, report.total_error?.[kind] ?? 0, unitOf(kind)];
    // The error has smaller type, to set it apart from the figure.
    const whole = estimateWithError(figure, error, unit);
    const [text, margin] = whole.split(" ± ");
    if (amount.textContent !== whole) replace(amount, text, margin && h("small", {}, ` ± ${margin}`));
    setProperties(amount, { title: exactWithError(figure, error, unit), "data-bytes": figure });
  }
}

/** Explanations of the verdicts on the sum of all rows. */
const VERDICTS = /** @type {Record<string, string>} */ ({
  equal: "All rows add up to the kernel's own figure, to the byte.",
  between: "The target changed its memory during the page scan: the sum lies between the kernel's figures before and after it.",
  below: "The sum lies below both of the kernel's figures. The target changes its memory, or the kernel's counters lag behind.",
  above: "The sum lies above both of the kernel's figures. The target changes its memory, or the kernel's counters lag behind.",
  incomplete: "Processes of the target are missing from the sum and from the kernel's figures shown here; the losses show the reason.",
});

function showAgreement(/** @type {Report} */ { agreement }) {
  const { verdict, resident, low, high } = agreement;
  const equal = verdict === "equal";
  const badge = byId("sum");
  badge.className = `badge ${equal ? "good" : "warn"}`;
  // The text is the maximum error of the sum: two figures that differ by a few pages would look equal.
  const texts = /** @type {Record<string, string>} */ ({
    equal: "✓ equals the kernel",
    between: `sum within ${bytes(high - low)} of kernel`,
    below: `sum ${bytes(low - resident)} below kernel`,
    above: `sum ${bytes(resident - high)} above kernel`,
    incomplete: "processes missing",
  });
  setText(badge, texts[verdict]);
  const lines = [VERDICTS[verdict], `Sum of all rows: ${exact(resident)}`, `Kernel, RssAnon + RssShmem: ${exact(low)}${low === high ? "" : ` to ${exact(high)}`}`];
  setProperties(badge, { title: lines.join("\n"), "data-verdict": verdict });
}

/** Shows how much is missing from the figures, or has no stack or name. */
function showLosses(/** @type {Report} */ report, /** @type {Summary} */ { outcomes, not_observed, names_advice }) {
  const lost = report.losses.reduce((total, loss) => total + loss.count, 0);
  const rows = (/** @type {import("./api.js").Loss[]} */ losses) => losses.map(({ what, count }) => `${number(count)} × ${what}`).join("\n");
  const list = rows(report.losses) || "No event, stack or page record was lost since memprof attached.";
  // Excluded on purpose, so that no figure is wrong.
  const excluded = report.not_counted.length ? `\nNot counted on purpose, in no figure here:\n${rows(report.not_counted)}` : "";
  const { all, unwalked } = report.faults ?? { all: 0, unwalked: 0 };
  if (report.faults === null) showChip("sampled", "warn", "page faults not hooked", "memprof runs with --stacks off: memory is attributed to the call that mapped it. The sums are exact.");
  else showChip("sampled", "warn", `estimates: ${(100 * (all - unwalked) / all).toFixed(1)} % of faults walked`, `The stacks of ${number(all - unwalked)} of ${number(all)} page faults were walked (--stacks). The sums are exact; bytes by stack are estimates.`);
  byId("sampled").hidden = report.faults !== null && unwalked === 0;
  showChip("losses", lost ? "bad" : "good", lost ? `${number(lost)} lost` : "nothing lost", list + excluded);
  const partial = outcomes.filter((row) => !row.complete && row.stacks > 0);
  const why = partial.map((row) => `${row.outcome}: ${number(row.stacks)} stacks, ${bytes(row.bytes)}`).join("\n");
  const cut = report.incomplete.all;
  showChip("partial", cut ? "warn" : "good", cut ? `${bytes(cut)} under incomplete stacks` : "all stacks complete", `Stacks whose unwinding did not reach the outermost frame.\n${why}`);
  const unseen = report.not_observed.all;
  const reasons = not_observed.map((row) => `${noStackReason(row.reason)}: ${bytes(row.bytes.all)}`).join("\n");
  showChip("unseen", "warn", `${bytes(unseen)} without a stack`, `The totals include this memory; the graph shows it by mapping.\n${reasons}`);
  byId("unseen").hidden = unseen === 0;
  showChip("names", "warn", "names missing", names_advice ?? "");
  byId("names").hidden = names_advice === null;
}

/** Shows the state of the connection; `tryAgain` is for a lost one. */
export function showConnection(/** @type {"live" | "lost" | "paused" | "ended" | "loading" | "saved"} */ status, /** @type {string} */ why, /** @type {(() => void) | undefined} */ tryAgain = undefined) {
  const texts = { live: "live", lost: "no connection", paused: "paused", ended: "target ended", loading: "connecting…", saved: "saved" };
  const classes = { live: "good", lost: "bad", paused: "warn", ended: "warn", loading: "", saved: "" };
  showChip("connection", classes[status], texts[status], why);
  if (status !== "lost") return hideBanner();
  // memprof ends with the program that it started.
  showChip("alive", "warn", "not running, or out of reach", why);
  showBanner("memprof has ended, or is out of reach.", "This is the last report; views that were open before can still be read. ", h("button", { class: "small", onclick: tryAgain }, "Try again"));
}

