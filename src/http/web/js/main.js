// Wires the page together: views, keys, live updates.

import { api, ApiError, countedGroups, hasSource, heapSnapshots } from "./api.js";
import { offerMarks, showControls, showFilterError, updateControls } from "./controls.js";
import { openExports, toggleHelp } from "./dialogs.js";
import { byId, h, messageOf, notice, replace, setProperties, showBanner } from "./dom.js";
import { isFiltered } from "./filter.js";
import { clock } from "./format.js";
import { waitingText } from "./glossary.js";
import { showConnection, showFigures, showGone, showTarget, showWaiting } from "./header.js";
import { isSampled, updateHeapMode } from "./kinds.js";
import { isOffline } from "./offline.js";
import { hasSelection, offerNewest, offerProcesses, watchSelection } from "./selection.js";
import { change, followLink, link, onChange, state } from "./state.js";
import { addScrollButtons } from "./tabs.js";
import { watchTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { LiveUpdates } from "./updates.js";
import { acceptFiles } from "./upload.js";
import { AddressSpace } from "./views/address_space.js";
import { Allocations } from "./views/allocations.js";
import { Diff } from "./views/diff.js";
import { Files } from "./views/files.js";
import { Functions } from "./views/functions.js";
import { Graph } from "./views/graph.js";
import { Growth } from "./views/growth.js";
import { HealthView } from "./views/health.js";
import { HeapView } from "./views/heap.js";
import { Processes } from "./views/processes.js";
import { Sandwich } from "./views/sandwich.js";

const EMPTY = "No stack has memory of this kind. Select another kind, or wait until the target uses some.";
const tree = () => api.tree(state);
/** Settings that require another tree. */
const TREE_SETTINGS = ["dir", "kind", "merge", "inl", "py", "min", "filter"];

/** @typedef {import("./api.js").Report} Report */
/**
 * A view. `refresh` fetches and shows data; `show` shows the current data with the settings of the link. Both return the report
 * that the view shows, if they fetched one.
 * @typedef {{ element: HTMLElement, refresh: () => Promise<Report | null | undefined | void>, show: () => any, graph?: Graph | null }} View
 */

/** Highlights a function, by its identity, in the flame graph. */
const showInFlame = (/** @type {import("./api.js").FunctionRow} */ row) => change({ view: "flame", q: "", fn: row.function ?? "", path: row.path, zoom: "", sel: "" }, true);

/** The views: [name, label, constructor, further settings that require new data]. */
const VIEWS = /** @type {[string, string, () => View, string[]][]} */ ([
  ["flame", "Flame graph", () => new Graph({ draw: "flame", fetch: tree, empty: EMPTY }), [...TREE_SETTINGS, "fn", "path"]],
  ["treemap", "Treemap", () => new Graph({ draw: "treemap", fetch: tree, empty: EMPTY }), [...TREE_SETTINGS, "fn", "path"]],
  ["tree", "Call tree", () => new Graph({ draw: "tree", fetch: tree, empty: EMPTY }), [...TREE_SETTINGS, "fn", "path"]],
  ["functions", "Functions", () => new Functions({ open: showInFlame, about: "Click a function to see it in the flame graph." }), ["py", "filter"]],
  ["sandwich", "Sandwich", () => new Sandwich(), ["fn", "path", ...TREE_SETTINGS]],
  ["files", "Page cache", () => new Files(), ["file", ...TREE_SETTINGS]],
  ["space", "Address space", () => new AddressSpace(), []],
  ["diff", "Difference", () => new Diff(), [...TREE_SETTINGS, "from", "to"]],
  ["health", "Health", () => new HealthView(), []],
  ["heap", "Heap", () => new HeapView(heapSnapshots), ["heap", "hfrom", "hby"]],
  ["allocations", "Allocations", () => new Allocations(), ["aby", "filter"]],
  ["processes", "Processes", () => new Processes(), []],
  ["growth", "Growth", () => new Growth(), ["kind", "gby", "t0", "t1"]],
]).filter(([name]) => !isOffline || !["diff", "health", "heap", "sandwich", "allocations", "processes", "growth"].includes(name));

const content = byId("content");

/** Settings that are reset when another view is opened. */
const RESET = { zoom: "", sel: "", zoomUp: "", selUp: "", sort: "", page: "0", file: "" };

/** @type {View | null} */
let view = null;
/** Whether several processes are followed. */
let several = false;
/** The call tree that keys control. */
const graph = () => (view instanceof Graph ? view : view?.graph);
/** Number of refreshes. A reply to an earlier refresh is ignored. */
let refreshes = 0;

/** The entry of the open view in `VIEWS`. */
const openEntry = () => VIEWS.find(([name]) => name === state.view) ?? VIEWS[0];

function openView() {
  const [name, , create] = openEntry();
  state.view = name;
  view = create();
  showControls((by) => graph()?.step(by));
  showTabs();
  replace(content, notice("Loading…", ""));
}

function showTabs() {
  // The view of sampled allocations needs samples, and the list of processes is for several processes.
  const isUseful = /** @type {Record<string, boolean>} */ ({ allocations: isSampled(), processes: several, growth: timeline.recorded });
  const offered = VIEWS.filter(([name]) => (isUseful[name] ?? true) || state.view === name);
  replace(
    byId("tabs"),
    ...offered.map(([name, text], i) =>
      // The "./" is for accessibility checks, which take links that begin with "#" for skip links.
      h("a", { href: `./${link({ view: name, ...RESET })}`, "aria-current": name === state.view ? "page" : undefined, "data-name": text, title: i < 10 ? `Key: ${(i + 1) % 10}` : null }, text),
    ),
  );
}

/** The report that the view shows, and the newest summary of the selected state. */
const shown = { report: /** @type {Report | null} */ (null), summary: /** @type {import("./api.js").Summary | null} */ (null) };

/**
 * Shows the figures of the view's report, so that view and figures are of the same moment; of the newest report if the view has
 * no report or is filtered.
 */
function showReport(/** @type {Report | null | undefined | void} */ report) {
  shown.report = (!isFiltered() && report) || null;
  const { summary } = shown;
  if (summary) showFigures(shown.report ?? summary.report, summary);
}

/** Fetches and shows the data of the open view; an error is shown only if there is no earlier data. */
async function refresh() {
  const number = ++refreshes;
  const current = view;
  if (!current) return;
  content.setAttribute("aria-busy", "true");
  try {
    const report = await current.refresh();
    if (number !== refreshes || current !== view) return;
    showReport(report);
    showFilterError("");
    if (!content.contains(current.element)) {
      replace(content, current.element);
      current.show();
    }
    performance.mark("memprof-painted");
  } catch (error) {
    if (number !== refreshes || current !== view) return;
    // The form for the token replaces the view.
    if (error instanceof ApiError && error.status === 401) return;
    const why = messageOf(error);
    if (isFiltered() && error instanceof ApiError && error.status === 400) {
      // The earlier data does not match this filter.
      showFilterError(why);
      showReport(null);
      return replace(content, notice("The filter is invalid", "Correct the filter above, or select “no filter”.", "error"));
    }
    // Earlier data stays visible. Without earlier data, the error is shown.
    if (content.contains(current.element)) return;
    showReport(null);
    const isWaiting = error instanceof ApiError && error.status === 503;
    replace(content, isWaiting ? notice(waitingText(why), "This page shows the memory of the target as soon as it runs.") : notice("This view could not be loaded", why, "error"));
  } finally {
    if (number === refreshes) content.removeAttribute("aria-busy");
  }
}

async function refreshAll() {
  await Promise.all([timeline.refresh().then(showTabs), refresh()]);
}

const timeline = new Timeline(byId("timeline"), (mark) => change({ view: "diff", from: mark.id, to: "", zoom: "", sel: "" }, true), offerMarks);
const updates = new LiveUpdates({
  summary: showSelected,
  sample: (sample) => timeline.add(sample),
  waiting: showWaiting,
  refresh: refreshAll,
  connection: showConnection,
});

/** Number of optional controls that are shown. */
let optionalControls = 0;
/** Whether controls for sampled allocations are shown. */
let sampled = isSampled();
let started = false;

/** Shows the totals of the selected report or, by default, of the newest one. */
async function showSelected(/** @type {import("./api.js").Summary} */ newest) {
  offerProcesses(newest.target);
  updateHeapMode(newest.report);
  // Only a summary contains which optional kinds are counted.
  const controls = countedGroups() + Number(hasSource());
  if (controls > optionalControls || sampled !== isSampled()) showControls();
  optionalControls = controls;
  if (sampled !== isSampled()) {
    sampled = isSampled();
    showTabs();
    // A filter of the link does not apply any more.
    if (state.filter) refresh();
  }
  if (several !== newest.target.pids.length > 1) {
    several = !several;
    showTabs();
  }
  const requested = link();
  try {
    const summary = hasSelection() ? await api.selectedSummary() : newest;
    if (requested !== link()) return;
    shown.summary = summary;
    showTarget(summary);
    showReport(shown.report);
  } catch (error) {
    if (requested === link()) showGone(messageOf(error));
  }
}

/** Settings that require another report. */
const SELECTION = ["pid", "cgroup", "mark"];

onChange((changed) => {
  offerNewest();
  if (SELECTION.some((name) => changed.has(name))) updates.fetchSummary();
  if (changed.has("t0") || changed.has("t1")) timeline.showRange();
  if (timeline.recorded && ["mark", "from", "to", "view"].some((name) => changed.has(name))) timeline.draw();
  if (changed.has("res")) timeline.refresh();
  if (changed.has("pause")) {
    showPaused();
    updates.resume();
  }
  if (changed.has("view")) {
    openView();
    // `updates` makes the first request.
    if (started) refresh();
    return;
  }
  if (!view) return;
  showTabs();
  if (changed.has("kind")) timeline.draw();
  if (changed.has("file") || (state.view === "sandwich" && changed.has("path"))) showControls();
  else updateControls();
  // The current tree shows the selected function at once. The next tree also counts it in dropped nodes.
  if (changed.has("fn") || changed.has("path")) view.show();
  const [, , , fetched] = openEntry();
  if ([...fetched, ...SELECTION].some((name) => changed.has(name))) refresh();
  else if (["zoom", "sel", "zoomUp", "selUp", "q", "group", "sort", "shape", "page", "kind", "pby"].some((name) => changed.has(name))) Promise.resolve(view.show()).then((report) => report && showReport(report), () => refresh());
});

function showPaused() {
  const button = byId("pause");
  button.textContent = state.pause ? "Resume" : "Pause";
  setProperties(button, { "aria-pressed": state.pause ? "true" : "false" });
}

const togglePause = () => change({ pause: state.pause ? "" : "1" });

async function addMark(freeze = false) {
  try {
    const mark = await api.addMark(`${freeze ? "exact state" : "mark"} at ${clock(Date.now())}`, freeze);
    await timeline.refresh();
    // The difference view will compare with this mark, unless it is open with another mark.
    const compares = state.view === "diff" && state.from;
    change({ ...(compares ? {} : { from: mark.id, to: "" }), ...(freeze ? { mark: mark.id } : {}) }, freeze);
    if (compares) await refresh();
  } catch (error) {
    showBanner(freeze ? "The exact state could not be taken." : "The mark could not be set.", messageOf(error));
  }
}

function handleKey(/** @type {KeyboardEvent} */ event) {
  const isWaiting = document.body.dataset.waiting !== undefined;
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
  const number = Number(event.key);
  if (event.key === "?") toggleHelp();
  else if (isWaiting) return;
  else if (event.key === "/") byId("search")?.focus();
  else if (event.key === "p") togglePause();
  else if (event.key === "m") addMark();
  else if (event.key === "[" || event.key === "]") timeline.stepBy(event.key === "]" ? 1 : -1);
  else if (event.key === "n" || event.key === "N") graph()?.step(event.key === "n" ? 1 : -1);
  else if (event.key === "Escape" && !document.querySelector("dialog[open]")) graph()?.zoomBack();
  else if (/^[0-9]$/.test(event.key) && VIEWS[(number + 9) % 10]) change({ view: VIEWS[(number + 9) % 10][0], ...RESET }, true);
  else return;
  event.preventDefault();
}

addEventListener("keydown", handleKey);
byId("pause").addEventListener("click", togglePause);
byId("mark").addEventListener("click", () => addMark());
byId("freeze").addEventListener("click", () => addMark(true));
byId("export").addEventListener("click", openExports);
byId("help-button").addEventListener("click", toggleHelp);
byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  content.focus();
});
watchTheme(() => {
  view?.show();
  timeline.refresh();
});

document.body.classList.toggle("report", isOffline);
if (!isOffline) acceptFiles(() => refreshAll());
addScrollButtons(byId("tabs"));
watchSelection();
followLink();
if (!view) openView();
showPaused();
started = true;
updates.start();
