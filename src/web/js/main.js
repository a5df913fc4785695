// Wires the page together: views, keys, live refresh.

import { api, ApiError, countedGroups, hasSource, heaps } from "./api.js";
import { offerMarks, showControls, showFilterError, updateControls } from "./controls.js";
import { fill, h, notice, set } from "./dom.js";
import { isFiltered } from "./filter.js";
import { clock } from "./format.js";
import { showConnection, showFigures, showGone, showTarget, showWaiting } from "./header.js";
import { heapIs, isSampled } from "./kinds.js";
import { Live } from "./updates.js";
import { acceptFiles } from "./upload.js";
import { openExports, toggleHelp } from "./dialogs.js";
import { isSaved } from "./offline.js";
import { change, follow, link, onChange, state } from "./state.js";
import { showEnds } from "./tabs.js";
import { chosen, listen, offerNow, offerProcesses } from "./selection.js";
import { toggleTheme, useTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { awaited } from "./glossary.js";
import { Allocations } from "./views/allocations.js";
import { Diff } from "./views/diff.js";
import { Files } from "./views/files.js";
import { Functions } from "./views/functions.js";
import { Graph } from "./views/graph.js";
import { HealthView } from "./views/health.js";
import { HeapView } from "./views/heap.js";
import { Processes } from "./views/processes.js";
import { Sandwich } from "./views/sandwich.js";
import { Space } from "./views/address_space.js";

const EMPTY = "No stack has memory of this kind. Select another kind, or wait until the target uses some.";
const tree = () => api.tree(state);
/** Settings that require another tree. */
const SHAPE = ["dir", "kind", "merge", "inl", "py", "min", "filter"];

/** @typedef {import("./api.js").Report} Report */
/**
 * A view: `refresh` returns the report that it shows, if it shows one, and so does `show` if it asks for one.
 * @typedef {{ element: HTMLElement, refresh: () => Promise<Report | null | undefined | void>, show: () => any, graph?: Graph | null }} View
 */

/** Highlights a function, by its identity, in the flame graph. */
const showInFlame = (/** @type {import("./api.js").FunctionRow} */ row) => change({ view: "flame", q: "", fn: row.function ?? "", path: row.path, zoom: "", sel: "" }, true);

/** The views: [name, label, constructor, further settings that require new data]. */
const VIEWS = /** @type {[string, string, () => View, string[]][]} */ ([
  ["flame", "Flame graph", () => new Graph({ draw: "flame", fetch: tree, empty: EMPTY }), [...SHAPE, "fn", "path"]],
  ["treemap", "Treemap", () => new Graph({ draw: "treemap", fetch: tree, empty: EMPTY }), [...SHAPE, "fn", "path"]],
  ["tree", "Call tree", () => new Graph({ draw: "tree", fetch: tree, empty: EMPTY }), [...SHAPE, "fn", "path"]],
  ["functions", "Functions", () => new Functions({ open: showInFlame, about: "Click one to see it in the flame graph." }), ["py", "filter"]],
  ["sandwich", "Sandwich", () => new Sandwich(), ["fn", "path", ...SHAPE]],
  ["files", "Page cache", () => new Files(), ["file", ...SHAPE]],
  ["space", "Address space", () => new Space(), []],
  ["diff", "Difference", () => new Diff(), [...SHAPE, "from", "to"]],
  ["health", "Health", () => new HealthView(), []],
  ["heap", "Heap", () => new HeapView(heaps), ["heap", "hfrom", "hby"]],
  ["allocations", "Allocations", () => new Allocations(), ["aby", "filter"]],
  ["processes", "Processes", () => new Processes(), []],
]).filter(([name]) => !isSaved || !["diff", "health", "heap", "sandwich", "allocations", "processes"].includes(name));

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const content = at("content");

/** The settings that end with a view. */
const FRESH = { zoom: "", sel: "", zoomUp: "", selUp: "", sort: "", page: "0", file: "" };

/** @type {View | null} */
let view = null;
/** Whether several processes are followed. */
let several = false;
/** The call tree that keys act on. */
const graph = () => (view instanceof Graph ? view : view?.graph);
/** Counts refreshes, so that a late reply to an earlier request is ignored. */
let wanted = 0;

function open() {
  const [name, , make] = VIEWS.find(([name]) => name === state.view) ?? VIEWS[0];
  state.view = name;
  view = make();
  showControls((by) => graph()?.step(by));
  tabs();
  fill(content, notice("Loading…", ""));
}

function tabs() {
  // Groups of sampled allocations are offered where there are samples, and a list of processes where there are several.
  const has = /** @type {Record<string, boolean>} */ ({ allocations: isSampled(), processes: several });
  const offered = VIEWS.filter(([name]) => (has[name] ?? true) || state.view === name);
  fill(
    at("tabs"),
    ...offered.map(([name, text], i) =>
      // With a path: what begins with "#" passes for a skip link.
      h("a", { href: `./${link({ view: name, ...FRESH })}`, "aria-current": name === state.view ? "page" : undefined, "data-name": text, title: i < 10 ? `Key: ${(i + 1) % 10}` : null }, text),
    ),
  );
}

/** The report that the view shows, and the newest summary of the selected state. */
const shown = { report: /** @type {Report | null} */ (null), summary: /** @type {import("./api.js").Summary | null} */ (null) };

/**
 * Shows the figures of the view's report, so that both are of one moment; of the newest one if the view has none, or has only
 * the allocations that a filter chooses.
 */
function showReport(/** @type {Report | null | undefined | void} */ report) {
  shown.report = (!isFiltered() && report) || null;
  const { summary } = shown;
  if (summary) showFigures(shown.report ?? summary.report, summary);
}

/** Fetches and shows the data of the open view; an error is shown only if there is no earlier data. */
async function refresh() {
  const mine = ++wanted;
  const current = view;
  if (!current) return;
  content.setAttribute("aria-busy", "true");
  try {
    const report = await current.refresh();
    if (mine !== wanted || current !== view) return;
    showReport(report);
    showFilterError("");
    if (!content.contains(current.element)) {
      fill(content, current.element);
      current.show();
    }
    performance.mark("memprof-painted");
  } catch (error) {
    if (mine !== wanted || current !== view) return;
    // In the view's place the page asks for the token.
    if (error instanceof ApiError && error.status === 401) return;
    const why = error instanceof Error ? error.message : String(error);
    if (isFiltered() && error instanceof ApiError && error.status === 400) {
      // What is shown is not what the filter says.
      showFilterError(why);
      showReport(null);
      return fill(content, notice("No allocation is chosen", "The filter cannot be used. Correct it above, or choose “no filter”.", "error"));
    }
    // Earlier data stays visible; without any, the error is shown instead.
    if (content.contains(current.element)) return;
    showReport(null);
    const waits = error instanceof ApiError && error.status === 503;
    fill(content, waits ? notice(awaited(why), "This page shows its memory as soon as it runs.") : notice("This view could not be loaded", why, "error"));
  } finally {
    if (mine === wanted) content.removeAttribute("aria-busy");
  }
}

async function refreshAll() {
  await Promise.all([timeline.refresh(), refresh()]);
}

const timeline = new Timeline(at("timeline"), (mark) => change({ view: "diff", from: mark.id, to: "", zoom: "", sel: "" }, true), offerMarks);
const live = new Live({
  summary: showChosen,
  sample: (sample) => timeline.add(sample),
  waiting: showWaiting,
  refresh: refreshAll,
  connection: showConnection,
});

let offered = 0;
/** Whether what needs sampled allocations is offered. */
let sampled = isSampled();
let started = false;

/** Shows the totals of the selected report or, by default, of the newest one. */
async function showChosen(/** @type {import("./api.js").Summary} */ newest) {
  offerProcesses(newest.target);
  heapIs(newest.report);
  // Only a summary tells which optional kinds are counted.
  const offers = countedGroups() + Number(hasSource());
  if (offers > offered || sampled !== isSampled()) showControls();
  offered = offers;
  if (sampled !== isSampled()) {
    sampled = isSampled();
    tabs();
    // A link may have a filter, which does not apply.
    if (state.filter) refresh();
  }
  if (several !== newest.target.pids.length > 1) {
    several = !several;
    tabs();
  }
  const asked = link();
  try {
    const summary = chosen() ? await api.shown() : newest;
    if (asked !== link()) return;
    shown.summary = summary;
    showTarget(summary);
    showReport(shown.report);
  } catch (error) {
    if (asked === link()) showGone(error instanceof Error ? error.message : String(error));
  }
}

/** Settings that require another report. */
const WHICH = ["pid", "cgroup", "mark"];

onChange((changed) => {
  offerNow();
  if (WHICH.some((name) => changed.has(name))) live.ask();
  if (changed.has("t0") || changed.has("t1")) timeline.range();
  if (changed.has("res")) timeline.refresh();
  if (changed.has("pause")) {
    paused();
    live.resume();
  }
  if (changed.has("view")) {
    open();
    // `live` makes the first request.
    if (started) refresh();
    return;
  }
  if (!view) return;
  tabs();
  if (changed.has("kind")) timeline.draw();
  if (changed.has("file") || (state.view === "sandwich" && changed.has("path"))) showControls();
  else updateControls();
  // A chosen function is shown at once in the tree that is there; the new one also counts what that tree leaves out.
  if (changed.has("fn") || changed.has("path")) view.show();
  const [, , , fetched] = VIEWS.find(([name]) => name === state.view) ?? VIEWS[0];
  if ([...fetched, ...WHICH].some((name) => changed.has(name))) refresh();
  else if (["zoom", "sel", "zoomUp", "selUp", "q", "group", "sort", "shape", "page", "kind", "pby"].some((name) => changed.has(name))) Promise.resolve(view.show()).then((report) => report && showReport(report), () => refresh());
});

function paused() {
  const button = at("pause");
  button.textContent = state.pause ? "Resume" : "Pause";
  set(button, { "aria-pressed": state.pause ? "true" : "false" });
}

async function addMark(freeze = false) {
  try {
    const mark = await api.addMark(`${freeze ? "exact state" : "mark"} at ${clock(Date.now())}`, freeze);
    await timeline.refresh();
    // The difference will be from this mark, unless another comparison is open.
    const compares = state.view === "diff" && state.from;
    change({ ...(compares ? {} : { from: mark.id, to: "" }), ...(freeze ? { mark: mark.id } : {}) }, freeze);
    if (compares) await refresh();
  } catch (error) {
    const banner = at("banner");
    fill(banner, h("strong", {}, freeze ? "The exact state could not be taken. " : "The mark could not be set. "), error instanceof Error ? error.message : "");
    banner.hidden = false;
  }
}

function key(/** @type {KeyboardEvent} */ event) {
  const waits = document.body.dataset.waiting !== undefined;
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
  const number = Number(event.key);
  if (event.key === "?") toggleHelp();
  else if (waits) return;
  else if (event.key === "/") at("search")?.focus();
  else if (event.key === "p") change({ pause: state.pause ? "" : "1" });
  else if (event.key === "m") addMark();
  else if (event.key === "n" || event.key === "N") graph()?.step(event.key === "n" ? 1 : -1);
  else if (event.key === "Escape" && !document.querySelector("dialog[open]")) graph()?.leave();
  else if (/^[0-9]$/.test(event.key) && VIEWS[(number + 9) % 10]) change({ view: VIEWS[(number + 9) % 10][0], ...FRESH }, true);
  else return;
  event.preventDefault();
}

addEventListener("keydown", key);
at("pause").addEventListener("click", () => change({ pause: state.pause ? "" : "1" }));
at("mark").addEventListener("click", () => addMark());
at("freeze").addEventListener("click", () => addMark(true));
at("export").addEventListener("click", openExports);
at("help-button").addEventListener("click", toggleHelp);
at("skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  content.focus();
});
at("theme").addEventListener("click", () => {
  toggleTheme();
  view?.show();
  timeline.refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  view?.show();
  timeline.refresh();
});

useTheme();
document.body.classList.toggle("report", isSaved);
if (!isSaved) acceptFiles(() => refreshAll());
showEnds(at("tabs"));
listen();
follow();
if (!view) open();
paused();
started = true;
live.start();
