// The settings of the page. They are in the URL's fragment, so that a link reproduces the view.

/** Defaults; settings equal to them are left out of the link. */
const DEFAULTS = {
  view: "flame", // flame, treemap, tree, functions, sandwich, files, space, diff, health, heap, allocations, processes, growth
  shape: "icicle", // icicle: root on top; flame: root at the bottom
  dir: "callees", // callees: outermost function first; callers: innermost first
  kind: "all",
  merge: "function",
  inl: "", // "1": inlined functions are separate frames
  py: "", // frames of interpreted programs: "" all frames, "source" only source functions, "native" only native functions
  min: "0", // bytes; smaller nodes are aggregated
  q: "", // search
  filter: "", // an expression that selects sampled allocations, for kinds of the heap
  fn: "", // with `path`: the name of the selected function, "" for code without a symbol
  path: "", // the file of the selected function
  zoom: "", // key of the node that fills the width
  sel: "", // key of the selected node
  zoomUp: "", // like `zoom`, for the callers in the sandwich
  selUp: "", // like `sel`, for the callers in the sandwich
  group: "purpose", // the grouping of the address space: purpose, file, none
  gby: "function", // the rows of what grew: function, stack
  aby: "function", // the grouping of allocations: function, stack, thread, size, lifetime
  sort: "", // the order of a table (sort.js)
  page: "0", // the page of a list, from 0
  pby: "process", // the list of processes: process, group
  pid: "", // the selected process, "" for all of them
  cgroup: "", // the control group whose processes are selected, "" for all of them
  mark: "", // the mark whose report is shown, "" for the newest report
  file: "", // the cached file whose stacks are shown
  from: "", // diff: the earlier mark
  to: "", // diff: the later mark, "" for now
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
    if (value !== /** @type {any} */ (DEFAULTS)[name]) parameters.set(name, String(value));
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
  if (next !== before) history[step ? "pushState" : "replaceState"](null, "", next === "#" ? location.pathname : next);
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
  for (const name of /** @type {(keyof State)[]} */ (Object.keys(DEFAULTS))) {
    const value = parameters.get(name);
    if (value !== null) next[name] = value;
  }
  apply(next);
}

/** Applies the settings of the link, now and after each change of it. */
export function followLink() {
  addEventListener("hashchange", read);
  addEventListener("popstate", read);
  read();
}
