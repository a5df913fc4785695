// Wires the page together: views, keys, live refresh.

import { api, ApiError, countsKernel, newestReport } from "./api.js";
import { showControls, updateControls } from "./controls.js";
import { fill, h, notice, set } from "./dom.js";
import { clock } from "./format.js";
import { showConnection, showGone, showSummary, showTaken, showWaiting } from "./header.js";
import { Live } from "./live.js";
import { acceptFiles } from "./open.js";
import { openExports, toggleHelp } from "./panels.js";
import { isSaved } from "./saved.js";
import { change, follow, link, onChange, state } from "./state.js";
import { chosen, listen, offerNow, offerProcesses } from "./which.js";
import { toggleTheme, useTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Diff } from "./views/diff.js";
import { Files } from "./views/files.js";
import { Functions } from "./views/functions.js";
import { Graph } from "./views/graph.js";
import { HealthView } from "./views/health.js";
import { Space } from "./views/space.js";

const EMPTY = "No stack has memory of this kind. Select another kind, or wait until the target uses some.";
const tree = () => api.tree(state);
/** Settings that require another tree. */
const SHAPE = ["dir", "kind", "merge", "inl", "min"];

/** @typedef {{ element: HTMLElement, refresh: () => Promise<void>, show: () => any }} View */

/** The views: [name, label, constructor, further settings that require new data]. */
const VIEWS = /** @type {[string, string, () => View, string[]][]} */ ([
  ["flame", "Flame graph", () => new Graph({ draw: "flame", fetch: tree, empty: EMPTY }), SHAPE],
  ["treemap", "Treemap", () => new Graph({ draw: "treemap", fetch: tree, empty: EMPTY }), SHAPE],
  ["tree", "Call tree", () => new Graph({ draw: "tree", fetch: tree, empty: EMPTY }), SHAPE],
  ["functions", "Functions", () => new Functions(), []],
  ["files", "Page cache", () => new Files(), ["file", ...SHAPE]],
  ["space", "Address space", () => new Space(), []],
  ["diff", "Difference", () => new Diff(), [...SHAPE, "from", "to"]],
  ["health", "Health", () => new HealthView(), []],
]).filter(([name]) => !isSaved || !["diff", "health"].includes(name));

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const content = at("content");

/** @type {View | null} */
let view = null;
/** Counts refreshes, so that a late reply to an earlier request is ignored. */
let wanted = 0;

function open() {
  const [name, , make] = VIEWS.find(([name]) => name === state.view) ?? VIEWS[0];
  state.view = name;
  view = make();
  showControls();
  tabs();
  fill(content, notice("Loading…", ""));
}

function tabs() {
  fill(
    at("tabs"),
    ...VIEWS.map(([name, text], i) =>
      h("a", { href: link({ view: name, zoom: "", sel: "", sort: "", page: "0", file: "" }), "aria-current": name === state.view ? "page" : undefined, "data-name": text, title: `Key: ${i + 1}` }, text),
    ),
  );
  at("tabs").querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** Fetches and shows the data of the open view; an error is shown only if there is no earlier data. */
async function refresh() {
  const mine = ++wanted;
  const current = view;
  if (!current) return;
  content.setAttribute("aria-busy", "true");
  try {
    await current.refresh();
    if (mine !== wanted || current !== view) return;
    if (!content.contains(current.element)) {
      fill(content, current.element);
      current.show();
    }
    showTaken({ view: newestReport().taken });
    performance.mark("memprof-painted");
  } catch (error) {
    if (mine !== wanted || current !== view) return;
    const why = error instanceof Error ? error.message : String(error);
    // Earlier data stays visible; without any, the error is shown instead.
    if (content.contains(current.element)) return;
    const waits = error instanceof ApiError && error.status === 503;
    fill(content, waits ? notice("No report yet", why) : notice("This view could not be loaded", why, "error"));
  } finally {
    if (mine === wanted) content.removeAttribute("aria-busy");
  }
}

async function refreshAll() {
  await Promise.all([timeline.refresh(), refresh()]);
}

const timeline = new Timeline(at("timeline"), (mark) => change({ view: "diff", from: mark.id, to: "", zoom: "", sel: "" }, true));
const live = new Live({
  summary: showChosen,
  sample: (sample) => timeline.add(sample),
  waiting: showWaiting,
  refresh: refreshAll,
  connection: showConnection,
});

let kernelOffered = false;

/** Shows the totals of the selected report or, by default, of the newest one. */
async function showChosen(/** @type {import("./api.js").Summary} */ newest) {
  offerProcesses(newest.target);
  // Only the first summary tells whether the kind `kernel` is available.
  if (countsKernel() && !kernelOffered) showControls();
  kernelOffered = countsKernel();
  if (!chosen()) return showSummary(newest);
  const asked = link();
  try {
    const summary = await api.shown();
    if (asked === link()) showSummary(summary);
  } catch (error) {
    if (asked === link()) showGone(error instanceof Error ? error.message : String(error));
  }
}

/** Settings that require another report. */
const WHICH = ["pid", "mark"];

onChange((changed) => {
  offerNow();
  if (WHICH.some((name) => changed.has(name))) live.ask();
  if (changed.has("t0") || changed.has("t1")) timeline.range();
  if (changed.has("res")) timeline.refresh();
  if (changed.has("pause")) paused();
  if (changed.has("view")) {
    open();
    refresh();
    return;
  }
  if (!view) return;
  tabs();
  if (changed.has("file")) showControls();
  else updateControls();
  const [, , , fetched] = VIEWS.find(([name]) => name === state.view) ?? VIEWS[0];
  if ([...fetched, ...WHICH].some((name) => changed.has(name))) refresh();
  else if (["zoom", "sel", "q", "sort", "shape", "page", "kind"].some((name) => changed.has(name))) Promise.resolve(view.show()).catch(() => refresh());
});

function paused() {
  const button = at("pause");
  button.textContent = state.pause ? "Resume" : "Pause";
  set(button, { "aria-pressed": state.pause ? "true" : "false" });
  live.resume();
}

async function addMark(freeze = false) {
  try {
    const mark = await api.addMark(`${freeze ? "exact state" : "mark"} at ${clock(Date.now())}`, freeze);
    await timeline.refresh();
    if (freeze) change({ mark: mark.id }, true);
    if (state.view === "diff") await refresh();
  } catch (error) {
    const banner = at("banner");
    fill(banner, h("strong", {}, freeze ? "The exact state could not be taken. " : "The mark could not be set. "), error instanceof Error ? error.message : "");
    banner.hidden = false;
  }
}

function key(/** @type {KeyboardEvent} */ event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
  const number = Number(event.key);
  if (event.key === "/") at("search")?.focus();
  else if (event.key === "?") toggleHelp();
  else if (event.key === "p") change({ pause: state.pause ? "" : "1" });
  else if (event.key === "m") addMark();
  else if (number >= 1 && number <= VIEWS.length) change({ view: VIEWS[number - 1][0], zoom: "", sel: "", sort: "", page: "0", file: "" }, true);
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
listen();
follow();
if (!view) open();
live.start();
paused();
