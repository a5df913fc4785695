// Sampled allocations in groups, with averages and the course of each group over time.

import { api, isSampling } from "../api.js";
import { choices } from "../choices.js";
import { isFiltered } from "../filter.js";
import { bytes, duration, estimate, estimateWithError, exactWithError, IN_95_PERCENT, number } from "../format.js";
import { functionName } from "../glossary.js";
import { change, state } from "../state.js";
import { bar, ESTIMATE_REM } from "../table.js";
import { PagedTable } from "./paged_table.js";

/** @typedef {import("../api.js").AllocationFigures} Figures */
/** @typedef {import("../api.js").AllocationRow} Row */

/** Seconds, as text. */
const time = (/** @type {number | null} */ s) => (s === null ? "–" : s < 1e-3 ? `${Math.round(s * 1e6)} µs` : duration(s * 1000));

/** The conjunction of the current filter and another one. */
const filterAnd = (/** @type {string} */ filter) => (state.filter ? `(${state.filter}) && ${filter}` : filter);

/** Seconds in CEL, always with a decimal point: CEL does not compare times with integers. */
const celSeconds = (/** @type {number} */ s) => (Number.isInteger(s) ? `${s}.0` : s.toFixed(9).replace(/0+$/, ""));

/** The common property of a row's allocations: its text, and the filter that matches them. @returns {[string, string | null]} */
function group(/** @type {Row} */ row) {
  if (row.frames) return [[...row.frames, ...(row.frames_left_out ? [`… ${row.frames_left_out} more`] : [])].join(" ← "), null];
  if (row.thread !== undefined) return [`thread ${row.thread}`, `thread == ${row.thread}`];
  if (row.size_from !== undefined) return [`${bytes(row.size_from)} to ${bytes(row.size_to)}`, `size >= ${row.size_from} && size < ${row.size_to}`];
  if (row.lifetime_from !== undefined) {
    const from = row.lifetime_from > 0 ? `${time(row.lifetime_from)} to ` : "below ";
    return [from + time(row.lifetime_to), `!live && lifetime >= ${celSeconds(row.lifetime_from)} && lifetime < ${celSeconds(row.lifetime_to)}`];
  }
  if (row.live_now) return ["live", "live"];
  return [row.frame ?? functionName(row), null];
}

/** Shows a row's allocations in the flame graph. */
function open(/** @type {Row} */ row) {
  const settings = { view: "flame", kind: "alloc_space", q: "", fn: "", path: "", zoom: "", sel: "", sort: "", page: "0" };
  const [, filter] = group(row);
  if (filter) change({ ...settings, filter: filterAnd(filter) }, true);
  else if (row.path !== undefined) change({ ...settings, fn: row.function ?? "", path: row.path }, true);
}

const SVG = "http://www.w3.org/2000/svg";
/** Height of a chart, in units of its view box. */
const HEIGHT = 20;

/** A small chart of allocated bytes (bars) and live bytes (line) over time, each with its own scale. */
function chart(/** @type {Figures} */ { allocated, live }) {
  const element = document.createElementNS(SVG, "svg");
  const add = (/** @type {string} */ tag, /** @type {Record<string, string | number>} */ attributes) => {
    const shape = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, String(value));
    element.append(shape);
  };
  const height = (/** @type {number} */ value, /** @type {number[]} */ values) => (HEIGHT * value) / Math.max(1, ...values);
  element.setAttribute("viewBox", `0 0 ${allocated.length} ${HEIGHT}`);
  element.setAttribute("preserveAspectRatio", "none");
  element.setAttribute("class", "course");
  element.setAttribute("aria-hidden", "true");
  allocated.forEach((value, i) => value > 0 && add("rect", { x: i, y: HEIGHT - height(value, allocated), width: 0.9, height: height(value, allocated) }));
  add("polyline", { points: live.map((value, i) => `${i + 0.5},${HEIGHT - 1 - (height(value, live) * (HEIGHT - 2)) / HEIGHT}`).join(" ") });
  return element;
}

/** The chart in words. */
function describeChart(/** @type {Figures} */ row) {
  return `Maximum allocated in one interval: ${bytes(Math.max(0, ...row.allocated))}. Maximum live: ${bytes(Math.max(0, ...row.live))}, now ${bytes(row.live.at(-1) ?? 0)}.`;
}

/** An average with its error, for tooltips. */
function averageWithError(/** @type {number | null} */ value, /** @type {number | null} */ error, /** @type {(value: number) => string} */ text) {
  return value === null ? "none" : `${text(value)}${error ? ` ± ${text(IN_95_PERCENT * error)} (95 %)` : ""}`;
}

const wholeBytes = (/** @type {number} */ value) => bytes(Math.round(value));

/** What to do where no allocations are sampled. */
const NOT_SAMPLED = ["Allocations are not sampled", "This view needs samples of single allocations: start the program with “memprof --heap -- COMMAND”. Without them, Flame graph shows resident memory by stack, and Snapshot the objects in the heap."];

/** @extends {PagedTable<Row>} */
export class Allocations extends PagedTable {
  constructor() {
    super([
      { name: "key", label: "Group", wide: true, by: () => "", cell: (row) => group(row)[0], tip: (row) => group(row)[0] },
      { name: "allocated", label: "Allocated", title: "Bytes allocated, including freed ones (estimated)", numeric: true, rem: ESTIMATE_REM, by: () => 0, cell: (row) => bar(estimate(row.alloc_space, row.alloc_space_error), row.alloc_space, this.whole), tip: (row) => exactWithError(row.alloc_space, row.alloc_space_error) },
      { name: "live", label: "Live", title: "Bytes that are not freed (estimated)", numeric: true, rem: ESTIMATE_REM, by: () => 0, cell: (row) => bar(estimate(row.inuse_space, row.inuse_space_error), row.inuse_space, this.wholeLive, "second"), tip: (row) => exactWithError(row.inuse_space, row.inuse_space_error) },
      { name: "temporary", label: "Temporary", title: "Bytes freed within --heap-temporary (estimated)", numeric: true, rem: ESTIMATE_REM, by: () => 0, cell: (row) => estimate(row.temporary_space, row.temporary_space_error), tip: (row) => exactWithError(row.temporary_space, row.temporary_space_error) },
      { name: "objects", label: "Number", title: "Number of allocations (estimated)", numeric: true, rem: ESTIMATE_REM, by: () => 0, cell: (row) => estimate(row.alloc_objects, row.alloc_objects_error, "objects"), tip: (row) => `${exactWithError(row.alloc_objects, row.alloc_objects_error, "objects")}; ${number(row.samples)} samples` },
      { name: "size", label: "Avg. size", title: "Average size of these allocations (estimated)", numeric: true, by: () => 0, cell: (row) => (row.average_size === null ? "–" : wholeBytes(row.average_size)), tip: (row) => averageWithError(row.average_size, row.average_size_error, wholeBytes) },
      { name: "lifetime", label: "Avg. lifetime", title: "Average lifetime of freed allocations (estimated)", numeric: true, by: () => 0, cell: (row) => time(row.average_lifetime), tip: (row) => averageWithError(row.average_lifetime, row.average_lifetime_error, time) },
      { name: "age", label: "Avg. age", title: "Average age of live allocations (estimated)", numeric: true, by: () => 0, cell: (row) => time(row.average_age), tip: (row) => averageWithError(row.average_age, row.average_age_error, time) },
      { name: "course", label: "Over time", title: "From the first sample to now. Bars: allocated. Line: live. Each has its own scale", rem: 14, cell: chart, tip: describeChart },
    ], { label: "Groups of sampled allocations. Click a group to see the stacks of its allocations.", key: (row) => JSON.stringify([group(row)[0], row.path]), open }, ["sort", "page", "aby"]);
    this.whole = 0;
    this.wholeLive = 0;
    /** The table of commands, while allocations are not sampled. @type {HTMLElement | null} */
    this.choices = null;
  }

  /** @override */
  async refresh() {
    if (!isSampling()) await api.summary();
    if (!isSampling()) return this.showRows({ rows: [], count: 0 }, 0, "", NOT_SAMPLED, (this.choices ??= choices()));
    const defaultOrder = /^(size|lifetime)$/.test(state.aby) ? "key" : "-allocated";
    const page = await api.allocations({ by: state.aby, ...this.parameters(defaultOrder) });
    const { total } = page;
    [this.whole, this.wholeLive] = [total.alloc_space, total.inuse_space];
    const missing = [
      page.missing_until !== null && `${number(page.missing)} samples freed in the first ${time(page.missing_until)} are missing`,
      page.without_stack > 0 && `${number(page.without_stack)} samples without a stack are excluded`,
    ].filter(Boolean).join("; ");
    const note = `${number(total.samples)} samples in ${time(page.seconds)}: allocated ${estimateWithError(total.alloc_space, total.alloc_space_error)}, live ${estimateWithError(total.inuse_space, total.inuse_space_error)}${missing ? ` (${missing})` : ""}. ${number(page.count)} ${page.count === 1 ? "group" : "groups"}. Click a group to see the stacks of its allocations.`;
    this.showRows(page, total.alloc_space, note, ["No allocation", isFiltered() ? "The filter matches no allocation." : "No allocation has been sampled yet."]);
  }
}
