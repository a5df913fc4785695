// The settings of the page. They are in the URL's fragment, so that a link reproduces the view.

/** Defaults; settings equal to them are left out of the link. */
const DEFAULTS = {
  view: "flame", // overview, flame, treemap, tree, functions, sandwich, files, space, diff, health, heap, allocations, processes, growth
  shape: "icicle", // icicle: root on top; flame: root at the bottom
  dir: "callees", // callees: outermost function first; callers: innermost first
  kind: "all",
  merge: "function",
  inl: "", // "0": inlined functions are part of their callers, "": separate frames
  py: "", // frames of interpreted programs: "" only source functions, "all" with native functions, "native" only those
  min: "0", // bytes; smaller nodes are aggregated
  q: "", // search
  filter: "", // an expression that selects sampled allocations, for kinds of the heap
  fn: "", // with `path`: the name of the selected function, "" for code without a symbol
  path: "", // the file of the selected function
  zoom: "", // key of the node that fills the width
  sel: "", // key of the selected node
  zoomUp: "", // like `zoom`, for the callers in the sandwich
  selUp: "", // like `sel`, for the callers in the sandwich
  src: "", // "1": the source text of the selected function is shown
  group: "purpose", // the grouping of the address space: purpose, file, none
  gby: "function", // the rows of what grew: function, stack
  aby: "function", // the grouping of allocations: function, stack, thread, size, lifetime
  sort: "", // the order of a table (sort.js)
  page: "0", // the page of a list, from 0
  pby: "process", // the list of processes: process, ended, group
  pid: "", // the selected process, "" for all of them
  cgroup: "", // the control group whose processes are selected, "" for all of them
  mark: "", // the mark whose report is shown, "" for the newest report
  file: "", // the cached file whose stacks are shown
  from: "", // diff: the earlier mark
  to: "", // diff: the later mark, "" for now
  show: "", // diff: "" what grew, "shrinkage", "all"
  heap: "", // the heap snapshot, "" for the newest one
  hfrom: "", // the heap snapshot that `heap` is compared with
  hby: "", // the division of the heap's treemap: "" by kind and size, type, arena
  t0: "", // the start of the timeline's range, in seconds since 1970
  t1: "", // the end of the range
  res: "1s", // the timeline's resolution
  pause: "", // "1": no refreshes
};

/** @typedef {typeof DEFAULTS} State */

/** @type {State} */
export const state = { ...DEFAULTS };

/** Whether a setting has its default, or would have it with another value. */
export const isDefault = (/** @type {string} */ name, value = /** @type {any} */ (state)[name]) => value === /** @type {any} */ (DEFAULTS)[name];

/** The default of a setting. */
export const defaultOf = (/** @type {string} */ name) => /** @type {any} */ (DEFAULTS)[name];

/** @type {((changed: Set<string>) => void)[]} */
const listeners = [];

/** Registers a listener, which is called with the names of the changed settings. */
export function onChange(/** @type {(changed: Set<string>) => void} */ listener) {
  listeners.push(listener);
}

/** The link to the current state with these changes. */
export function link(/** @type {Partial<State>} */ patch = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...state, ...patch })) {
    // A link without a view shows the flame graph, and no link at all the overview.
    if (name === "view" || value !== /** @type {any} */ (DEFAULTS)[name]) parameters.set(name, String(value));
  }
  return `#${parameters}`;
}

/**
 * Changes settings. A step (another view, another zoom) can be undone with the browser's Back button;
 * other changes replace the link.
 */
export function change(/** @type {Partial<State>} */ patch, step = false) {
  const before = location.hash || "#";
  const next = link(patch);
  if (next !== before) history[step ? "pushState" : "replaceState"](null, "", next);
  apply({ ...state, ...patch });
}

/** Shows the callers and callees of a function. */
export function openSandwich(/** @type {string} */ fn, /** @type {string} */ path) {
  change({ view: "sandwich", fn, path, q: "", zoom: "", sel: "", zoomUp: "", selUp: "" }, true);
}

function apply(/** @type {State} */ next) {
  const changed = new Set();
  for (const name of /** @type {(keyof State)[]} */ (Object.keys(DEFAULTS))) {
    if (state[name] !== next[name]) changed.add(name);
    state[name] = next[name];
  }
  if (changed.size) for (const listener of listeners) listener(changed);
}

function read() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const next = { ...DEFAULTS };
  if (![...parameters.keys()].length) next.view = "overview";
  for (const name of /** @type {(keyof State)[]} */ (Object.keys(DEFAULTS))) {
    const value = parameters.get(name);
    if (value !== null) next[name] = value;
  }
  // Values of today's defaults in older links.
  if (next.inl === "1") next.inl = "";
  if (next.py === "source") next.py = "";
  apply(next);
}

/** Applies the settings of the link, now and after each change of it. */
export function followLink() {
  addEventListener("hashchange", read);
  addEventListener("popstate", read);
  read();
}
