// Wires the page together: views, keys, live updates.

import { api, ApiError, countedGroups, hasSource, heapSnapshots } from "./api.js";
import { offerMarks, showControls, showFilterError, toggleNative, updateControls } from "./controls.js";
import { openExports, toggleHelp } from "./dialogs.js";
import { byId, h, isMenuOpen, messageOf, notice, openMenu, replace, setProperties, showBanner } from "./dom.js";
import { isFiltered } from "./filter.js";
import { clock } from "./format.js";
import { NO_REPORT, waitingText } from "./glossary.js";
import { showConnection, showFigures, showGone, showSaved, showTarget, showWaiting } from "./header.js";
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
import { OverviewView } from "./views/overview.js";
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

/** The groups of views, in the order of the tabs. */
const GROUPS = ["Overview", "Where", "Change", "Heap", "System"];
/** The views: [group, name, label, key, constructor, further settings that require new data]. */
const VIEWS = /** @type {[string, string, string, string, () => View, string[]][]} */ ([
  ["Overview", "overview", "Overview", "o", () => new OverviewView(), []],
  ["Where", "flame", "Flame graph", "1", () => new Graph({ draw: "flame", fetch: tree, empty: EMPTY }), [...TREE_SETTINGS, "fn", "path"]],
  ["Where", "treemap", "Treemap", "2", () => new Graph({ draw: "treemap", fetch: tree, empty: EMPTY }), [...TREE_SETTINGS, "fn", "path"]],
  ["Where", "tree", "Call tree", "3", () => new Graph({ draw: "tree", fetch: tree, empty: EMPTY }), [...TREE_SETTINGS, "fn", "path"]],
  ["Where", "functions", "Functions", "4", () => new Functions({ open: showInFlame, about: "Click a function to see it in the flame graph." }), ["py", "filter"]],
  ["Where", "sandwich", "Sandwich", "5", () => new Sandwich(), ["fn", "path", ...TREE_SETTINGS]],
  ["Change", "diff", "Difference", "8", () => new Diff(), [...TREE_SETTINGS, "from", "to"]],
  ["Change", "growth", "Growth", "", () => new Growth(), ["kind", "gby", "t0", "t1"]],
  ["Heap", "heap", "Snapshot", "0", () => new HeapView(heapSnapshots), ["heap", "hfrom", "hby"]],
  ["Heap", "allocations", "Allocations", "", () => new Allocations(), ["aby", "filter"]],
  ["System", "files", "Page cache", "6", () => new Files(), ["file", ...TREE_SETTINGS]],
  ["System", "space", "Address space", "7", () => new AddressSpace(), []],
  ["System", "processes", "Processes", "", () => new Processes(), []],
  ["System", "health", "Health", "9", () => new HealthView(), []],
]).filter(([, name]) => !isOffline || !["diff", "health", "heap", "sandwich", "allocations", "processes", "growth"].includes(name));

const content = byId("content");

/** Settings that are reset when another view is opened. */
const RESET = { zoom: "", sel: "", zoomUp: "", selUp: "", sort: "", page: "0", file: "" };

/** @type {View | null} */
let view = null;
/** Whether several processes are followed, or were. */
let several = false;
/** The call tree that keys control. */
const graph = () => (view instanceof Graph ? view : view?.graph);
/** Number of refreshes. A reply to an earlier refresh is ignored. */
let refreshes = 0;

/** The entry of the open view in `VIEWS`. */
const openEntry = () => VIEWS.find(([, name]) => name === state.view) ?? VIEWS[1];

function openView() {
  const [, name, , , create] = openEntry();
  state.view = name;
  view = create();
  showControls((by) => graph()?.step(by));
  showTabs();
  replace(content, notice("Loading…", ""));
}

/** Shows the groups of views: the open one with all its views, each other one as a link to its first view. */
function showTabs() {
  // The list of processes is for several processes; growth needs a recording.
  const isUseful = /** @type {Record<string, boolean>} */ ({ allocations: isSampled(), processes: several, growth: timeline.recorded });
  const offered = VIEWS.filter(([, name]) => (isUseful[name] ?? true) || state.view === name);
  const [open] = openEntry();
  // The "./" is for accessibility checks, which take links that begin with "#" for skip links.
  const tab = (/** @type {string} */ name, /** @type {string} */ text, /** @type {string | null} */ title) => h("a", { href: `./${link({ view: name, ...RESET })}`, "aria-current": name === state.view ? "page" : undefined, "data-name": text, title }, text);
  const groups = GROUPS.map((group) => ({ group, views: offered.filter(([of]) => of === group) })).filter(({ views }) => views.length > 0);
  const parts = groups.map(({ group, views }) => {
    const names = views.map(([, , label]) => label).join(", ");
    if (group !== open || views.length === 1) return h("span", { class: "tab-group" }, tab(views[0][1], group, views.length === 1 ? `Key: ${views[0][3]}` : names));
    return h("span", { class: "tab-group open", role: "group", "aria-label": group }, h("span", { class: "group-name", "aria-hidden": "true" }, group), ...views.map(([, name, label, key]) => tab(name, label, key && `Key: ${key}`)));
  });
  const signature = `${link({ ...RESET })} ${offered.map(([, name]) => name)}`;
  // A link that has the focus keeps it.
  if (byId("tabs").dataset.shown === signature) return;
  byId("tabs").dataset.shown = signature;
  replace(byId("tabs"), ...parts);
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
    // Other replies with this status say what is busy or cannot be read.
    const isWaiting = error instanceof ApiError && error.status === 503 && why.startsWith(NO_REPORT);
    const isGone = error instanceof ApiError && error.status === 0;
    if (isGone) return replace(content, notice("This view was not open while memprof ran", `${why} Views that were open before can still be read.`));
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
  saved: showSaved,
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
  if (several !== newest.target.pids.length + newest.ended > 1) {
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
    if (state.view === "diff") byId("compare").hidden = true;
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
  const [, , , , , fetched] = openEntry();
  if ([...fetched, ...SELECTION].some((name) => changed.has(name))) refresh();
  else if (["zoom", "sel", "zoomUp", "selUp", "q", "group", "sort", "shape", "page", "kind", "pby", "show"].some((name) => changed.has(name))) Promise.resolve(view.show()).then((report) => report && showReport(report), () => refresh());
});

function showPaused() {
  const button = byId("pause");
  button.textContent = state.pause ? "Resume" : "Pause";
  setProperties(button, { "aria-pressed": state.pause ? "true" : "false" });
}

const togglePause = () => change({ pause: state.pause ? "" : "1" });

/** After a mark was set, offers the difference since it. */
function offerComparison(/** @type {import("./api.js").Mark} */ mark) {
  const button = byId("compare");
  button.hidden = state.view === "diff";
  button.textContent = `${mark.name ?? "The mark"} is set: compare with it`;
  button.onclick = () => change({ view: "diff", from: mark.id, to: "", mark: "", zoom: "", sel: "" }, true);
}

async function addMark(freeze = false) {
  try {
    const mark = await api.addMark(`${freeze ? "exact state" : "mark"} at ${clock(Date.now())}`, freeze);
    await timeline.refresh();
    // The difference view will compare with this mark, unless it is open with another mark.
    const compares = state.view === "diff" && state.from;
    change({ ...(compares ? {} : { from: mark.id, to: "" }), ...(freeze ? { mark: mark.id } : {}) }, freeze);
    if (compares) await refresh();
    offerComparison(mark);
  } catch (error) {
    showBanner(freeze ? "The exact state could not be taken." : "The mark could not be set.", messageOf(error));
  }
}

function handleKey(/** @type {KeyboardEvent} */ event) {
  const isWaiting = document.body.dataset.waiting !== undefined;
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
  const byKey = VIEWS.find(([, , , key]) => key === event.key);
  if (event.key === "?") toggleHelp();
  else if (isWaiting) return;
  else if (event.key === "/") byId("search")?.focus();
  else if (event.key === "p") togglePause();
  else if (event.key === "m") addMark();
  else if (event.key === "f") toggleNative();
  else if (event.key === "[" || event.key === "]") timeline.stepBy(event.key === "]" ? 1 : -1);
  else if (event.key === "n" || event.key === "N") graph()?.step(event.key === "n" ? 1 : -1);
  else if (event.key === "Escape") {
    // The browser closes the dialog or the menu.
    if (document.querySelector("dialog[open]") || isMenuOpen()) return;
    graph()?.zoomBack();
  } else if (byKey) change({ view: byKey[1], ...RESET }, true);
  else return;
  event.preventDefault();
}

addEventListener("keydown", handleKey);
byId("pause").addEventListener("click", togglePause);
byId("mark").addEventListener("click", () => addMark());
byId("freeze").addEventListener("click", () => addMark(true));
byId("export").addEventListener("click", openExports);
byId("help-button").addEventListener("click", toggleHelp);
byId("note-list").addEventListener("toggle", () => isMenuOpen() && openMenu(byId("note-list"), byId("notes")));
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
