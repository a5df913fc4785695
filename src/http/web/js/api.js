// Client of memprof's HTTP API (openapi-v2.json). Paths are relative, so that a proxy can serve the page below any path.

import { messageOf } from "./dom.js";
import { clock } from "./format.js";
import { noStackReason, noSymbol } from "./glossary.js";
import { canBeFiltered, isSampled, unitOf, updateHeapMode } from "./kinds.js";
import { isOffline, offlineReply } from "./offline.js";
import { state } from "./state.js";
import { askForToken, credentials, hasToken, TokenEventSource } from "./token.js";
import { Tree } from "./tree/model.js";

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
 * @property {number | null} [peak]
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
 * @property {HighestMemory | null} peak
 * @property {number} ended
 * @property {Outcome[]} outcomes
 * @property {{ count: number, rows: OomKill[] }} oom_kills
 * @property {string | null} names_advice the files and the JIT code without names, and how to get names
 */
/** @typedef {{ function: string | null, file: string, path: string, line: number | null, category: string, self: number, total: number, self_error: number, total_error: number }} FunctionRow */
/** @typedef {{ report: Report, count: number, offset: number, total: number, not_observed: number, unmapped: number, matched: number, rows: FunctionRow[] }} Functions */
/** @typedef {{ samples: number, alloc_space: number, alloc_space_error: number, alloc_objects: number, alloc_objects_error: number, inuse_space: number, inuse_space_error: number, temporary_space: number, temporary_space_error: number, average_size: number | null, average_size_error: number | null, average_lifetime: number | null, average_lifetime_error: number | null, average_age: number | null, average_age_error: number | null, allocated: number[], live: number[] }} AllocationFigures */
/** @typedef {AllocationFigures & { function?: string | null, file?: string, path?: string, frame?: string, frames?: string[], frames_left_out?: number, thread?: number, size_from?: number, size_to: number, lifetime_from?: number, lifetime_to: number, live_now?: boolean }} AllocationRow */
/** @typedef {{ line: number, self: number, total: number, self_error: number, total_error: number }} SourceLine */
/** @typedef {{ file: string, function: [number, number], lines: SourceLine[], text: { first: number, lines: string[], modified: number | null } | null, no_text: string | null }} SourceReply */
/** @typedef {{ seconds: number, missing: number, missing_until: number | null, without_stack: number, count: number, total: AllocationFigures, rows: AllocationRow[] }} AllocationGroups */
/** @typedef {{ function: string | null, file: string, path: string, line: number | null, category: string, self_from: number, self_to: number, self: number, total_from: number, total_to: number, total: number, self_error: number, total_error: number }} DiffRow */
/** @typedef {{ id: string, path: string | null, deleted: boolean, cached: number, stacks: number, inode: number, device: string }} FileRow */
/** @typedef {{ size: number, bytes: Usage, attributed: number, not_observed: number, huge: number }} MappingSums */
/** @typedef {MappingSums & { pid: number, start: string, end: string, permissions: string, name: string, runs_as: string | null, category: string }} Mapping */
/** @typedef {MappingSums & { report: Report, count: number, categories: (MappingSums & { category: string, mappings: number })[], rows: Mapping[] }} Maps */
/** @typedef {{ recorded: boolean, resolution: number, times: number[], series: { name: string, values: (number | null)[] }[] }} Series */
/** @typedef {{ name: string, shape?: string, per_hour: number, error: number, share?: number, since: number, rises: number, values: number[] }} GrowthRow */
/** @typedef {{ pid: number, comm: string, cgroup?: string, container?: string, pod?: string, killed: number, last: { resident: number, taken: number, age_ms: number, after_kill: boolean } | null }} OomKill a process that the OOM killer killed */
/** @typedef {{ id: string, name: string | null, created: number, taken: number, stopped_us: number | null, stopped_in_turn: boolean, exact: boolean, total: Usage, oom_kill: OomKill | null }} Mark */
/** @typedef {{ id: string, name: string | null, taken: number, pid: number, comm: string, stopped_us: number, copied: number, allocator: string, refused: string | null, verdict?: string[], live: number, free: number, overhead: number, trimmable: number, unreachable: number | null, anonymous: number, swapped: number }} HeapInfo */
/** @typedef {{ rss: number, high_water: number | null, processes: number, after_ms: number }} HighestMemory */
/** @typedef {{ pid: number, comm: string, cgroup?: string, container?: string, pod?: string, total: Usage, peak: HighestMemory | null }} ProcessRow */
/** @typedef {ProcessRow & { scanned: number, ended: number }} EndedRow */
/** @typedef {{ cgroup: string, container?: string, pod?: string, processes: number, total: Usage }} GroupRow */
/** @typedef {{ report: Report, total: Usage, rows: ProcessRow[], groups: GroupRow[], ended: EndedRow[], ended_unscanned: number }} Processes */
/** @typedef {{ function: string | null, place: string, path: string, bytes: number, per_hour: number | null, values: number[], own: boolean }} OverviewRow */
/** @typedef {{ name: string, bytes: number }} OverviewPart */
/** @typedef {{ report: Report, made_of: { sentence: string, rss: number, parts: OverviewPart[], beside: OverviewPart[] }, grows: { sentence: string, rows: OverviewRow[] }, peak: { sentence: string, rows: OverviewRow[] } | null, heap: { sentences: string[], id: string, taken: number, pid: number } | null, notes: { text: string, view: string | null }[], order: string[] }} Overview */
/** @typedef {{ name: string, about: string, extension: string, content_type: string, href: string, options: string[] }} Format */
/**
 * @typedef {object} Health
 * @property {string} version
 * @property {string | null} opened the file, if a saved profile is shown
 * @property {{ taken: number, age_ms: number, duration_ms: number } | null} scan
 * @property {Loss[]} losses
 * @property {Loss[]} not_counted excluded from all figures on purpose
 * @property {Outcome[]} outcomes
 * @property {{ name: string, entries: number, capacity: number }[]} maps
 * @property {{ name: string, why: string }[]} missing_programs
 * @property {{ rss: number, cpu_ms: number, uptime_ms: number }} own
 */
/** @typedef {{ dir: string, kind: string, merge: string, min: string, inl: string, py: string, from: string, to: string, fn: string, path: string }} TreeSettings */

/** Timeout of a request, in ms. */
const TIMEOUT_MS = 60_000;
/** Maximum number of rows of a list that is sorted in the browser. */
const MAX_ROWS = 10_000;
/** Reports of opened files are numbered from here, the target's own from 0. */
const FIRST_OPENED = 2 ** 52;
/** Maximum length of a function's name and file in a URL, in bytes. Longer names are only found in the tree that is shown. */
const MAX_NAME_BYTES = 2000;

/** A failed request: its status (0: no reply) and the server's error message. */
export class ApiError extends Error {
  constructor(/** @type {number} */ status, /** @type {string} */ text) {
    super(text);
    this.status = status;
  }
}

/** The parameters that select the processes. */
export const processParameters = () => ({ pid: state.pid, cgroup: state.pid ? "" : state.cgroup });
/** The parameters that select the report and the processes. */
const reportParameters = () => ({ mark: state.mark, ...processParameters() });

/** Whether single allocations are known. Only the newest report has them, if allocations are sampled; marks and files do not. */
export const hasSingleAllocations = () => !state.mark && !isOffline && isSampled();

/** Whether views of a kind can be filtered: kinds of the heap, while single allocations are known. */
export const canFilter = (kind = state.kind) => canBeFiltered(kind) && hasSingleAllocations() && !processParameters().cgroup;

/** The filter that applies to a kind. */
export const activeFilter = (kind = state.kind) => (canFilter(kind) ? state.filter : "");

/** The last replies, by request: what memprof has said stays readable when it has ended. @type {Map<string, any>} */
const lastReplies = new Map();
/** Maximum number of replies that are kept. A tree may have megabytes. */
const MAX_KEPT = 24;

/** The reply to a request that changes nothing, from memprof or, when it does not answer, from before. @returns {Promise<any>} */
async function read(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters) {
  const key = JSON.stringify([path, parameters]);
  try {
    const body = await send(path, parameters, {});
    lastReplies.delete(key);
    lastReplies.set(key, body);
    if (lastReplies.size > MAX_KEPT) lastReplies.delete(lastReplies.keys().next().value ?? "");
    return body;
  } catch (error) {
    // The totals tell whether memprof answers, so they are never from before.
    if (error instanceof ApiError && error.status === 0 && path !== "summary" && lastReplies.has(key)) return lastReplies.get(key);
    throw error;
  }
}

/** Sends a request and notes the report of its reply. @returns {Promise<any>} */
async function request(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters = {}, /** @type {RequestInit} */ init = {}) {
  const body = isOffline ? await offlineReply(path, parameters) : init.method ? await send(path, parameters, init) : await read(path, parameters);
  const report = body?.report;
  if (report?.taken && report.number >= newest.number && report.number < FIRST_OPENED) newest = report;
  sourceSeen ||= report?.has_source ?? false;
  updateHeapMode(report);
  for (const name of ["heap_counted", "heap_peak_counted", "kernel_counted", "pss_counted"]) if (report?.[name]) counted.add(name);
  return body;
}

/** Sends a request. @returns {Promise<any>} */
async function send(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters, /** @type {RequestInit} */ init) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined));
  let reply;
  try {
    reply = await fetch(`v2/${path}${query.size ? `?${query}` : ""}`, { signal: AbortSignal.timeout(TIMEOUT_MS), ...init, headers: { ...credentials(), ...init.headers } });
  } catch (error) {
    throw new ApiError(0, `memprof does not answer (${messageOf(error)}).`);
  }
  if (reply.status === 401) askForToken();
  if (!reply.ok) throw new ApiError(reply.status, (await reply.text()).trim() || `memprof replied with status ${reply.status}`);
  if (reply.status === 204) return null;
  return reply.json();
}

const postJson = (/** @type {any} */ body) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

/** Which optional kinds were counted in any report: `heap_counted`, `heap_peak_counted`, `kernel_counted`, `pss_counted`. @type {Set<string>} */
const counted = new Set();
/** Whether figures of a kind were counted. */
export const isCounted = (/** @type {import("./kinds.js").Kind} */ { group }) => group.counted === undefined || counted.has(group.counted);
/** Whether single allocations are sampled, as far as replies have told. */
export const isSampling = () => counted.has("heap_counted") && isSampled();
/** Number of groups of optional kinds that were counted. */
export const countedGroups = () => counted.size;

let sourceSeen = false;
/** Whether there are functions of an interpreted program. */
export const hasSource = () => sourceSeen;

let newest = { number: -1, taken: 0 };
/** The newest report in any reply: its number, and when it was taken. */
export const newestReport = () => newest;

/** The parameters of all tree requests. */
function treeParameters(/** @type {TreeSettings} */ { dir, merge, min, inl, py, kind }) {
  // Thresholds are sizes: they do not apply to numbers of objects.
  return { direction: dir, merge, threshold: unitOf(kind) === "bytes" ? min : "0", inlined: inl !== "0", frames: py };
}

/** The parameters of the selected function, if there is one. */
function functionParameters(/** @type {TreeSettings} */ { fn, path }) {
  return path && encodeURIComponent(fn + path).length <= MAX_NAME_BYTES ? { function: fn, path } : {};
}

/** @returns {Frame[]} */
function parseFrames(/** @type {any} */ { frames, strings, modules }) {
  return frames.type.map((/** @type {string} */ type, /** @type {number} */ i) => {
    const module = modules[frames.module[i]];
    const name = strings[frames.name[i]];
    const offset = frames.offset[i];
    return {
      type,
      name: frameLabel(type, name, module?.name, frames.reason[i]),
      text: name ?? "",
      module: module?.name ?? "",
      path: module?.path,
      offset: offset === null ? undefined : offset.toString(16),
      line: frames.line[i] ?? undefined,
      own: frames.category[i] === "own" || frames.category[i] === "own_rust",
    };
  });
}

/** The label of a frame, equal to memprof's texts and exports; `name` and `module` may be undefined. */
function frameLabel(/** @type {string} */ type, /** @type {string | undefined} */ name, /** @type {string | undefined} */ module, /** @type {string | null} */ reason) {
  if (type === "not_observed") return `[${noStackReason(reason ?? "")}: ${name}]`;
  if (type === "cut_off") return `[cut off: ${name}]`;
  const names = /** @type {Record<string, string>} */ ({ root: "all", unmapped: "[unknown]", no_stack: "[no stack]", below_threshold: "[below threshold]", over_limit: "[over limit]" });
  return name ?? names[type] ?? noSymbol(module ?? "?");
}

function parseTree(/** @type {any} */ reply, kind = "cache") {
  const { parent, frame, total, self, error, self_error, from, to, self_from, self_to } = reply.nodes;
  const amounts = from ? { value: to, self: self_to, before: from, selfBefore: self_from } : { value: total, self };
  const tree = new Tree({ frames: parseFrames(reply), parent: parent.map((/** @type {number | null} */ p) => p ?? -1), frame, ...amounts, error, selfError: self_error });
  tree.cut = reply.cut;
  tree.report = reply.report;
  tree.unit = unitOf(kind);
  tree.whole = reply.total ?? tree.value[0];
  return tree;
}

export const api = {
  /** The table of commands, as Markdown. @returns {Promise<string>} */
  choices: async () => {
    const reply = await fetch("assets/choose.md");
    if (!reply.ok) throw new Error(reply.statusText);
    return reply.text();
  },
  /** The summary of the newest report. @returns {Promise<Summary>} */
  summary: () => request("summary"),
  /** The summary of the selected report. @returns {Promise<Summary>} */
  selectedSummary: () => request("summary", reportParameters()),
  /** @returns {Promise<Overview>} */
  overview: () => request("overview", reportParameters()),
  /** @returns {Promise<Health>} */
  health: () => request("health"),
  /** @returns {Promise<{ cgroup: Cgroup | null }>} */
  cgroup: () => request("cgroup", { mark: state.mark }),
  /** All processes, whether they are selected or not. @returns {Promise<Processes>} */
  processes: () => request("processes", { mark: state.mark }),
  /** @returns {Promise<Tree>} */
  tree: async (/** @type {TreeSettings} */ settings) => {
    const { fn, path, kind } = settings;
    const reply = await request("tree", { kind, filter: activeFilter(kind), ...treeParameters(settings), ...functionParameters(settings), ...reportParameters() });
    const tree = parseTree(reply, kind);
    if (reply.matched !== null) tree.found = { fn, path, bytes: reply.matched };
    return tree;
  },
  /** The callees or the callers of the selected function; of the report with this number, if it is the newest. @returns {Promise<Tree>} */
  focus: async (/** @type {TreeSettings} */ settings, /** @type {number | undefined} */ report) => parseTree(await request("tree", { kind: settings.kind, filter: activeFilter(settings.kind), ...treeParameters(settings), function: settings.fn, path: settings.path, focus: true, report, ...reportParameters() }), settings.kind),
  /** @returns {Promise<Tree>} */
  fileTree: async (/** @type {string} */ file, /** @type {TreeSettings} */ settings) => parseTree(await request("files/stacks", { file, ...treeParameters({ ...settings, kind: "cache" }), ...reportParameters() })),
  /** @returns {Promise<Tree>} */
  diffTree: async (/** @type {TreeSettings} */ settings) => parseTree(await request("diff", { by: "stack", from: settings.from, to: settings.to, kind: settings.kind, ...processParameters(), ...treeParameters(settings) }), settings.kind),
  /** The functions with the largest changes of self bytes. @returns {Promise<{ report: Report, rows: DiffRow[], count: number }>} */
  diffFunctions: (/** @type {TreeSettings} */ settings) => request("diff", { by: "function", from: settings.from, to: settings.to, kind: settings.kind, sort: "self", limit: 1000, ...processParameters(), frames: settings.py }),
  /** The functions that changed most from one moment to another. @returns {Promise<{ rows: DiffRow[] }>} */
  mostChanged: (/** @type {string} */ from, /** @type {string} */ to) => request("diff", { by: "function", from, to, kind: state.kind, limit: 3, ...processParameters(), frames: state.py }),
  /** @returns {Promise<Functions>} */
  functions: (/** @type {Record<string, any>} */ parameters) => request("functions", { ...parameters, filter: activeFilter(parameters.kind), frames: state.py, ...reportParameters() }),
  /** @returns {Promise<SourceReply>} */
  source: (/** @type {Record<string, any>} */ parameters) => request("source", { ...parameters, frames: state.py, ...processParameters() }),
  /** @returns {Promise<AllocationGroups>} */
  allocations: (/** @type {Record<string, any>} */ parameters) => request("allocations", { ...parameters, filter: state.filter, pid: state.pid }),
  /** @returns {Promise<{ report: Report, total: number, other: number, count: number, rows: FileRow[] }>} */
  files: () => request("files", { limit: MAX_ROWS, ...reportParameters() }),
  /** @returns {Promise<Maps>} */
  maps: () => request("maps", { limit: MAX_ROWS, ...reportParameters() }),
  /** @returns {Promise<Series>} */
  series: (/** @type {string} */ resolution, /** @type {{ since?: number, until?: number }} */ range = {}) => request("series", { resolution, ...range }),
  /** The stored marks, and the mark of the peak. @returns {Promise<{ marks: Mark[], peak?: Mark | null }>} */
  marksAndPeak: () => request("marks"),
  /** What grew in the range of the timeline. @returns {Promise<{ from: number, to: number, total: GrowthRow, rows: GrowthRow[] }>} */
  growth: () => request("growth", { by: state.gby, kind: state.kind, from: state.t0 && `${state.t0}000`, to: state.t1 && `${state.t1}000` }),
  /** @returns {Promise<Mark>} */
  addMark: (/** @type {string} */ name, freeze = false) => request("marks", {}, postJson({ name, freeze })),
  /** Stores a saved profile as a mark. @returns {Promise<Mark>} */
  openFile: (/** @type {File} */ file) => request("marks/open", { name: file.name.slice(0, 100) }, { method: "POST", body: file }),
  removeMark: (/** @type {string} */ id) => request(`marks/${encodeURIComponent(id)}`, {}, { method: "DELETE" }),
  /** @returns {Promise<Format[]>} */
  exports: () => request("exports"),
  /** The stream of live totals. An `EventSource` reconnects automatically. */
  events: () => (hasToken() ? new TokenEventSource("v2/events") : new EventSource("v2/events")),
};

/** The heap snapshots that memprof stores. @type {import("./views/heap.js").SnapshotSource} */
export const heapSnapshots = {
  list: async () => (await request("heap")).snapshots,
  get: (id) => request(`heap/${encodeURIComponent(id)}`),
  diff: (from, to) => request("heap/diff", { from, to }),
  take: (maxStop) => request("heap", {}, postJson({ name: `heap at ${clock(Date.now())}`, ...(state.pid ? { pid: Number(state.pid) } : {}), ...(maxStop ? { max_stop: Number(maxStop) } : {}) })),
  remove: (id) => request(`heap/${encodeURIComponent(id)}`, {}, { method: "DELETE" }),
};
