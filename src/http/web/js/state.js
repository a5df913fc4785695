// The page's settings, stored in the URL's fragment, so that a link reproduces the view.

/** Defaults; settings equal to them are left out of the link. */
const DEFAULTS = {
  view: "flame", // flame, treemap, tree, functions, sandwich, files, space, diff, health, heap, allocations, processes
  shape: "icicle", // icicle: root on top; flame: root at the bottom
  dir: "callees", // callees: outermost function first; callers: innermost first
  kind: "all",
  merge: "function",
  inl: "", // "1": inlined functions are separate frames
  py: "", // of interpreted programs: "" all frames, "source" their functions alone, "native" native ones alone
  min: "0", // bytes; smaller nodes are aggregated
  q: "", // search
  filter: "", // an expression that chooses among the sampled allocations, for kinds of the heap
  fn: "", // with `path`: the name of the chosen function, "" for code without a symbol
  path: "", // the file of the chosen function
  zoom: "", // key of the node that fills the width
  sel: "", // key of the selected node
  zoomUp: "", // the same of the callers in the sandwich
  selUp: "",
  group: "purpose", // the address space's rows: purpose, file, none
  aby: "function", // the groups of allocations: function, stack, thread, size, lifetime
  sort: "", // a table's column, with a leading "-" for descending
  page: "0",
  pby: "process", // the list of processes: process, group
  pid: "", // the process that is shown, "" for all of them
  cgroup: "", // the control group whose processes are shown, "" for all of them
  mark: "", // the mark whose state is shown, "" for the newest report
  file: "", // the cached file whose stacks are shown
  from: "", // diff: the earlier mark
  to: "", // diff: the later mark, "" for now
  heap: "", // the heap snapshot that is shown, "" for the newest one
  hfrom: "", // the heap snapshot that it is compared with
  hby: "", // the heap's treemap: "" by kind and size, type, arena
  t0: "", // the timeline's range, seconds since 1970
  t1: "",
  res: "1s", // the timeline's resolution
  pause: "",
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

/** The link of a state. */
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

/** Starts to apply changes of the link. */
export function follow() {
  addEventListener("hashchange", read);
  addEventListener("popstate", read);
  read();
}
