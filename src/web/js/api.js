// Client of memprof's HTTP API (openapi/…-v2.json). Paths are relative, so that a proxy can serve the page
// below any path.

import { clock } from "./format.js";
import { Tree } from "./tree/model.js";
import { isSaved, saved } from "./offline.js";
import { heapIs, isOfHeap, isSampled, unitOf } from "./kinds.js";
import { state } from "./state.js";
import { askForToken, credentials, Events, hasToken } from "./token.js";
import { noSymbol, reason } from "./glossary.js";

/** @typedef {import("./tree/model.js").Frame} Frame */
/** @typedef {Record<string, number>} Usage bytes by kind */
/** @typedef {{ what: string, count: number }} Loss */
/** @typedef {{ outcome: string, complete: boolean, stacks: number, bytes: number }} Outcome */
/** @typedef {{ anonymous?: number, rss_anon: number, rss_shmem: number, rss_file: number, swap: number, page_tables: number }} Kernel */
/** @typedef {{ number: number, taken: number, pid: number, alive: boolean, stopped_us: number | null, stopped_in_turn: boolean, freeze_error: string | null, exact: boolean, kernel_counted: boolean, pss_counted: boolean, heap_counted: boolean, heap_exact: boolean, heap_single: boolean, total_error?: Usage, faults: { all: number, unwalked: number } | null, total: Usage, page_tables: number, agreement: Agreement, not_observed: Usage, incomplete: Usage, losses: Loss[], not_counted: Loss[] }} Report */
/** @typedef {{ verdict: string, resident: number, low: number, high: number }} Agreement */
/**
 * @typedef {object} CgroupRow
 * @property {string} name
 * @property {number} charged
 * @property {number | null} memprof
 * @property {number | null} difference
 * @property {string} note
 * @property {{ name: string, bytes: number }[]} parts
 *
 * @typedef {object} Cgroup
 * @property {string} path
 * @property {number | null} usage
 * @property {string | null} usage_file
 * @property {string | null} without_total
 * @property {number | null} tolerance
 * @property {number | null} limit
 * @property {number | null} oom_kills
 * @property {CgroupRow[]} rows
 *
 * @typedef {object} Summary
 * @property {string} version
 * @property {Report} report
 * @property {{ pid: number, comm: string, pids: number[], alive: boolean }} target
 * @property {Usage} total
 * @property {Usage} attributed
 * @property {{ reason: string, bytes: Usage }[]} not_observed
 * @property {{ before: Kernel, after: Kernel }} kernel
 * @property {Agreement} agreement
 * @property {Outcome[]} outcomes
 * @property {{ count: number, rows: OomKill[] }} oom_kills
 * @property {string | null} names_advice which files and which code made at run time have no names, and what would bring them
 */
/** @typedef {{ function: string | null, file: string, path: string, line: number | null, category: string, self: number, total: number, self_error: number, total_error: number }} FunctionRow */
/** @typedef {{ report: Report, count: number, offset: number, total: number, not_observed: number, unmapped: number, matched: number, rows: FunctionRow[] }} Functions */
/** @typedef {{ samples: number, alloc_space: number, alloc_space_error: number, alloc_objects: number, alloc_objects_error: number, inuse_space: number, inuse_space_error: number, temporary_space: number, temporary_space_error: number, average_size: number | null, average_size_error: number | null, average_lifetime: number | null, average_lifetime_error: number | null, average_age: number | null, average_age_error: number | null, allocated: number[], live: number[] }} AllocationFigures */
/** @typedef {AllocationFigures & { function?: string | null, file?: string, path?: string, frame?: string, frames?: string[], frames_left_out?: number, thread?: number, size_from?: number, size_to: number, lifetime_from?: number, lifetime_to: number, live_now?: boolean }} AllocationRow */
/** @typedef {{ seconds: number, missing: number, missing_until: number | null, without_stack: number, count: number, total: AllocationFigures, rows: AllocationRow[] }} AllocationGroups */
/** @typedef {{ function: string | null, file: string, path: string, self_from: number, self_to: number, self: number, total_from: number, total_to: number, total: number, self_error: number, total_error: number }} DiffRow */
/** @typedef {{ id: string, path: string | null, deleted: boolean, cached: number, stacks: number, inode: number, device: string }} FileRow */
/** @typedef {{ size: number, bytes: Usage, attributed: number, not_observed: number, huge: number }} MappingSums */
/** @typedef {MappingSums & { pid: number, start: string, end: string, permissions: string, name: string, runs_as: string | null, category: string }} Mapping */
/** @typedef {MappingSums & { report: Report, count: number, categories: (MappingSums & { category: string, mappings: number })[], rows: Mapping[] }} Maps */
/** @typedef {{ resolution: number, times: number[], series: { name: string, values: (number | null)[] }[] }} Series */
/** @typedef {{ pid: number, comm: string, cgroup?: string, container?: string, pod?: string, killed: number, last: { resident: number, taken: number, age_ms: number, after_kill: boolean } | null }} OomKill a process that was killed because memory had run out */
/** @typedef {{ id: string, name: string | null, created: number, taken: number, stopped_us: number | null, stopped_in_turn: boolean, exact: boolean, total: Usage, oom_kill: OomKill | null }} Mark */
/** @typedef {{ id: string, name: string | null, taken: number, pid: number, comm: string, stopped_us: number, copied: number, allocator: string, refused: string | null, live: number, free: number, overhead: number, trimmable: number, unreachable: number | null, anonymous: number, swapped: number }} HeapInfo */
/** @typedef {{ pid: number, comm: string, cgroup?: string, container?: string, pod?: string, total: Usage }} ProcessRow */
/** @typedef {{ cgroup: string, container?: string, pod?: string, processes: number, total: Usage }} GroupRow */
/** @typedef {{ report: Report, total: Usage, rows: ProcessRow[], groups: GroupRow[], ended: ProcessRow[], ended_unscanned: number }} Processes */
/** @typedef {{ name: string, about: string, extension: string, content_type: string, href: string, options: string[] }} Format */
/**
 * @typedef {object} Health
 * @property {string} version
 * @property {string | null} opened the file of a saved profile
 * @property {{ taken: number, age_ms: number, duration_ms: number } | null} scan
 * @property {Loss[]} losses
 * @property {Loss[]} not_counted left out of all figures on purpose
 * @property {Outcome[]} outcomes
 * @property {{ name: string, entries: number, capacity: number }[]} maps
 * @property {{ name: string, why: string }[]} missing_programs
 * @property {{ rss: number, cpu_ms: number, uptime_ms: number }} own
 */
/** @typedef {{ dir: string, kind: string, merge: string, min: string, inl: string, py: string, from: string, to: string, fn: string, path: string }} Choice */

/** Timeout of a request, in ms. */
const PATIENCE = 60_000;
/** Maximum number of rows of a list that is sorted in the browser. */
const ROWS = 10_000;

/** A failed request: its status (0: no reply) and the server's error message. */
export class ApiError extends Error {
  constructor(/** @type {number} */ status, /** @type {string} */ text) {
    super(text);
    this.status = status;
  }
}

/** The parameters that select the report and the processes. */
const which = () => ({ mark: state.mark, ...whose() });
export const whose = () => ({ pid: state.pid, cgroup: state.pid ? "" : state.cgroup });

/** Whether single allocations are known: now, if they are sampled, and neither in marks nor in files. */
export const hasSingle = () => !state.mark && !isSaved && isSampled();

/** Whether a filter can choose: of kinds of the heap, where single allocations are known. */
export const canFilter = (kind = state.kind) => isOfHeap(kind) && hasSingle() && !whose().cgroup;

/** The filter that applies. */
export const filterOf = (kind = state.kind) => (canFilter(kind) ? state.filter : "");

/** @returns {Promise<any>} */
async function ask(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters = {}, /** @type {RequestInit} */ init = {}) {
  const body = isSaved ? await saved(path, parameters) : await request(path, parameters, init);
  const number = body?.report?.number;
  if (number >= newest.number && number < OPENED) newest = body.report;
  sourceSeen ||= body?.report?.has_source ?? false;
  const { report } = body ?? {};
  heapIs(report);
  for (const name of ["heap_counted", "kernel_counted", "pss_counted"]) if (report?.[name]) counted.add(name);
  return body;
}

/** Reports of opened files are numbered from here, apart from the target's. */
const OPENED = 2 ** 52;

async function request(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters, /** @type {RequestInit} */ init) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined));
  let reply;
  try {
    reply = await fetch(`v2/${path}${query.size ? `?${query}` : ""}`, { signal: AbortSignal.timeout(PATIENCE), ...init, headers: { ...credentials(), ...init.headers } });
  } catch (error) {
    throw new ApiError(0, `No reply from memprof: ${error instanceof Error ? error.message : error}.`);
  }
  if (reply.status === 401) askForToken();
  if (!reply.ok) throw new ApiError(reply.status, (await reply.text()).trim() || `memprof replied with status ${reply.status}`);
  if (reply.status === 204) return null;
  return reply.json();
}

/** Which optional kinds were counted in any report: `heap_counted`, `kernel_counted`, `pss_counted`. @type {Set<string>} */
const counted = new Set();
/** Whether figures of a kind were counted. */
export const counts = (/** @type {import("./kinds.js").Kind} */ { group }) => group.counted === undefined || counted.has(group.counted);
/** How many groups of optional kinds were counted. */
export const countedGroups = () => counted.size;

let sourceSeen = false;
/** Whether there are functions of an interpreted program. */
export const hasSource = () => sourceSeen;

let newest = { number: -1, taken: 0 };
/** The newest report in any reply: its number, and when it was taken. */
export const newestReport = () => newest;

/** The parameters of all tree requests. */
function shape(/** @type {Choice} */ { dir, merge, min, inl, py, kind }) {
  // The thresholds on offer are sizes: they do not apply to numbers of objects.
  return { direction: dir, merge, threshold: unitOf(kind) === "bytes" ? min : "0", inlined: inl === "1", frames: py };
}

/** The longest name of a function that a URL can hold, in bytes; longer ones are found only in the tree that is shown. */
const LONGEST = 2000;

/** The parameters that select the chosen function, if there is one. */
function chosenFunction(/** @type {Choice} */ { fn, path }) {
  return path && encodeURIComponent(fn + path).length <= LONGEST ? { function: fn, path } : {};
}

/** @returns {Frame[]} */
function frames(/** @type {any} */ { frames, strings, modules }) {
  return frames.type.map((/** @type {string} */ type, /** @type {number} */ i) => {
    const module = modules[frames.module[i]];
    const name = strings[frames.name[i]];
    const offset = frames.offset[i];
    return {
      type,
      name: labelled(type, name, module?.name, frames.reason[i]),
      text: name ?? "",
      module: module?.name ?? "",
      path: module?.path,
      offset: offset === null ? undefined : offset.toString(16),
      line: frames.line[i] ?? undefined,
      own: frames.category[i] === "own" || frames.category[i] === "own_rust",
    };
  });
}

/** The label of a frame, as in memprof's texts and exports; `name` and `module` may be undefined. */
function labelled(/** @type {string} */ type, /** @type {string | undefined} */ name, /** @type {string | undefined} */ module, /** @type {string | null} */ why) {
  if (type === "not_observed") return `[${reason(why ?? "")}: ${name}]`;
  if (type === "cut_off") return `[cut off: ${name}]`;
  const names = /** @type {Record<string, string>} */ ({ root: "all", unmapped: "[unknown]", no_stack: "[no stack]", below_threshold: "[below threshold]", over_limit: "[over limit]" });
  return name ?? names[type] ?? noSymbol(module ?? "?");
}

function tree(/** @type {any} */ reply, kind = "cache") {
  const { parent, frame, total, self, error, self_error, from, to, self_from, self_to } = reply.nodes;
  const amounts = from ? { value: to, self: self_to, before: from, selfBefore: self_from } : { value: total, self };
  const made = new Tree({ frames: frames(reply), parent: parent.map((/** @type {number | null} */ p) => p ?? -1), frame, ...amounts, error, selfError: self_error });
  made.cut = reply.cut;
  made.report = reply.report;
  made.unit = unitOf(kind);
  made.whole = reply.total ?? made.value[0];
  return made;
}

export const api = {
  /** The summary of the newest report. @returns {Promise<Summary>} */
  summary: () => ask("summary"),
  /** The summary of the selected report. @returns {Promise<Summary>} */
  shown: () => ask("summary", which()),
  /** @returns {Promise<Health>} */
  health: () => ask("health"),
  /** @returns {Promise<{ cgroup: Cgroup | null }>} */
  cgroup: () => ask("cgroup", { mark: state.mark }),
  /** Of all processes, whichever are shown. @returns {Promise<Processes>} */
  processes: () => ask("processes", { mark: state.mark }),
  /** @returns {Promise<Tree>} */
  tree: async (/** @type {Choice} */ choice) => {
    const { fn, path } = choice;
    const reply = await ask("tree", { kind: choice.kind, filter: filterOf(choice.kind), ...shape(choice), ...chosenFunction(choice), ...which() });
    const made = tree(reply, choice.kind);
    if (reply.matched !== null) made.found = { fn, path, bytes: reply.matched };
    return made;
  },
  /** What the chosen function calls, or its callers; of this report, if it is still the newest. @returns {Promise<Tree>} */
  focus: async (/** @type {Choice} */ choice, /** @type {number | undefined} */ report) => tree(await ask("tree", { kind: choice.kind, filter: filterOf(choice.kind), ...shape(choice), function: choice.fn, path: choice.path, focus: true, report, ...which() }), choice.kind),
  /** @returns {Promise<Tree>} */
  fileTree: async (/** @type {string} */ file, /** @type {Choice} */ choice) => tree(await ask("files/stacks", { file, ...shape({ ...choice, kind: "cache" }), ...which() })),
  /** @returns {Promise<Tree>} */
  diffTree: async (/** @type {Choice} */ choice) => tree(await ask("diff", { by: "stack", from: choice.from, to: choice.to, kind: choice.kind, ...whose(), ...shape(choice) }), choice.kind),
  /** The functions whose self bytes changed most. @returns {Promise<{ report: Report, rows: DiffRow[], count: number }>} */
  diffFunctions: (/** @type {Choice} */ choice) => ask("diff", { by: "function", from: choice.from, to: choice.to, kind: choice.kind, sort: "self", limit: 1000, ...whose(), frames: choice.py }),
  /** @returns {Promise<Functions>} */
  functions: (/** @type {Record<string, any>} */ parameters) => ask("functions", { ...parameters, filter: filterOf(parameters.kind), frames: state.py, ...which() }),
  /** @returns {Promise<AllocationGroups>} */
  allocations: (/** @type {Record<string, any>} */ parameters) => ask("allocations", { ...parameters, filter: state.filter, pid: state.pid }),
  /** @returns {Promise<{ report: Report, total: number, other: number, count: number, rows: FileRow[] }>} */
  files: () => ask("files", { limit: ROWS, ...which() }),
  /** @returns {Promise<Maps>} */
  maps: () => ask("maps", { limit: ROWS, ...which() }),
  /** @returns {Promise<Series>} */
  series: (/** @type {string} */ resolution) => ask("series", { resolution }),
  /** @returns {Promise<Mark[]>} */
  marks: async () => (await ask("marks")).marks,
  /** @returns {Promise<Mark>} */
  addMark: (/** @type {string} */ name, freeze = false) => ask("marks", {}, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name, freeze }) }),
  /** Keeps a saved profile as a mark. @returns {Promise<Mark>} */
  openFile: (/** @type {File} */ file) => ask("marks/open", { name: file.name.slice(0, 100) }, { method: "POST", body: file }),
  removeMark: (/** @type {string} */ id) => ask(`marks/${encodeURIComponent(id)}`, {}, { method: "DELETE" }),
  /** @returns {Promise<Format[]>} */
  exports: () => ask("exports"),
  /** The stream of live totals; the browser reconnects automatically. */
  events: () => (hasToken() ? new Events("v2/events") : new EventSource("v2/events")),
};

/** The heap snapshots that memprof keeps. @type {import("./views/heap.js").Source} */
export const heaps = {
  list: async () => (await ask("heap")).snapshots,
  get: (id) => ask(`heap/${encodeURIComponent(id)}`),
  diff: (from, to) => ask("heap/diff", { from, to }),
  take: (limit) => ask("heap", {}, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name: `heap at ${clock(Date.now())}`, ...(state.pid ? { pid: Number(state.pid) } : {}), ...(limit ? { max_stop: Number(limit) } : {}) }) }),
  remove: (id) => ask(`heap/${encodeURIComponent(id)}`, {}, { method: "DELETE" }),
};
