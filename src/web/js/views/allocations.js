// Sampled allocations in groups: averages, and each group's course over time. memprof groups, sorts and pages them.

import { api } from "../api.js";
import { fill, h, notice, say, set } from "../dom.js";
import { isFiltered } from "../filter.js";
import { bytes, estimate, estimateWithError, exactly, number, span } from "../format.js";
import { change, state } from "../state.js";
import { bar, ESTIMATE, pages, Table } from "../table.js";
import { noSymbol } from "../glossary.js";

const LIMIT = 100;
const SORTS = /^-?(allocated|objects|live|temporary|size|lifetime|age|key)$/;

/** @typedef {import("../api.js").AllocationFigures} Figures */
/** @typedef {import("../api.js").AllocationRow} Row */

/** Seconds, as text. */
const time = (/** @type {number | null} */ s) => (s === null ? "–" : s < 1e-3 ? `${Math.round(s * 1e6)} µs` : span(s * 1000));

/** A filter that also has to hold. */
const also = (/** @type {string} */ filter) => (state.filter ? `(${state.filter}) && ${filter}` : filter);

/** Whole numbers of seconds are written with a point: CEL compares times with such numbers only. */
const seconds = (/** @type {number} */ s) => (Number.isInteger(s) ? `${s}.0` : s.toFixed(9).replace(/0+$/, ""));

/** What a row's allocations have in common: its text, and the filter that chooses them. @returns {[string, string | null]} */
function common(/** @type {Row} */ row) {
  if (row.frames) return [[...row.frames, ...(row.frames_left_out ? [`… ${row.frames_left_out} more`] : [])].join(" ← "), null];
  if (row.thread !== undefined) return [`thread ${row.thread}`, `thread == ${row.thread}`];
  if (row.size_from !== undefined) return [`${bytes(row.size_from)} to ${bytes(row.size_to)}`, `size >= ${row.size_from} && size < ${row.size_to}`];
  if (row.lifetime_from !== undefined) {
    const from = row.lifetime_from > 0 ? `${time(row.lifetime_from)} to ` : "below ";
    return [from + time(row.lifetime_to), `!live && lifetime >= ${seconds(row.lifetime_from)} && lifetime < ${seconds(row.lifetime_to)}`];
  }
  if (row.live_now) return ["still there", "live"];
  return [row.frame ?? row.function ?? noSymbol(row.file ?? ""), null];
}

/** Shows a row's allocations in the flame graph. */
function open(/** @type {Row} */ row) {
  const shown = { view: "flame", kind: "alloc_space", q: "", fn: "", path: "", zoom: "", sel: "", sort: "", page: "0" };
  const [, filter] = common(row);
  if (filter) change({ ...shown, filter: also(filter) }, true);
  else if (row.path !== undefined) change({ ...shown, fn: row.function ?? "", path: row.path }, true);
}

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 20;

/** A small picture of what was allocated (bars) and lived (line) when; each has a scale of its own. */
function course(/** @type {Figures} */ { allocated, live }) {
  const picture = document.createElementNS(SVG, "svg");
  const put = (/** @type {string} */ tag, /** @type {Record<string, string | number>} */ attributes) => {
    const part = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, String(value));
    picture.append(part);
  };
  const height = (/** @type {number} */ value, /** @type {number[]} */ of) => (HEIGHT * value) / Math.max(1, ...of);
  picture.setAttribute("viewBox", `0 0 ${allocated.length} ${HEIGHT}`);
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("class", "course");
  picture.setAttribute("aria-hidden", "true");
  allocated.forEach((value, at) => value > 0 && put("rect", { x: at, y: HEIGHT - height(value, allocated), width: 0.9, height: height(value, allocated) }));
  put("polyline", { points: live.map((value, at) => `${at + 0.5},${HEIGHT - 1 - (height(value, live) * (HEIGHT - 2)) / HEIGHT}`).join(" ") });
  return picture;
}

/** The course in words. */
function told(/** @type {Figures} */ row) {
  return `Most allocated in one part: ${bytes(Math.max(0, ...row.allocated))}. Most live: ${bytes(Math.max(0, ...row.live))}, now ${bytes(row.live.at(-1) ?? 0)}.`;
}

export class Allocations {
  constructor() {
    this.whole = 0;
    this.wholeLive = 0;
    /** The settings of the rows that are shown or asked for. */
    this.asked = "";
    const average = (/** @type {number | null} */ value, /** @type {number | null} */ error, /** @type {(value: number) => string} */ text) => (value === null ? "none" : `${text(value)}${error ? ` ± ${text(1.96 * error)} (95 %)` : ""}`);
    const columns = [
      { name: "key", label: "Group", wide: true, by: () => "", cell: (/** @type {Row} */ row) => common(row)[0], tip: (/** @type {Row} */ row) => common(row)[0] },
      { name: "allocated", label: "Allocated", title: "Bytes allocated, also those freed since (estimated)", numeric: true, rem: ESTIMATE, by: () => 0, cell: (/** @type {Row} */ row) => bar(estimate(row.alloc_space, row.alloc_space_error), row.alloc_space, this.whole), tip: (/** @type {Row} */ row) => exactly(row.alloc_space, row.alloc_space_error) },
      { name: "live", label: "Live", title: "Bytes that are not freed (estimated)", numeric: true, rem: ESTIMATE, by: () => 0, cell: (/** @type {Row} */ row) => bar(estimate(row.inuse_space, row.inuse_space_error), row.inuse_space, this.wholeLive, "second"), tip: (/** @type {Row} */ row) => exactly(row.inuse_space, row.inuse_space_error) },
      { name: "temporary", label: "Temporary", title: "Bytes freed within --heap-temporary (estimated)", numeric: true, rem: ESTIMATE, by: () => 0, cell: (/** @type {Row} */ row) => estimate(row.temporary_space, row.temporary_space_error), tip: (/** @type {Row} */ row) => exactly(row.temporary_space, row.temporary_space_error) },
      { name: "objects", label: "Number", title: "Number of allocations (estimated)", numeric: true, rem: ESTIMATE, by: () => 0, cell: (/** @type {Row} */ row) => estimate(row.alloc_objects, row.alloc_objects_error, "objects"), tip: (/** @type {Row} */ row) => `${exactly(row.alloc_objects, row.alloc_objects_error, "objects")}; ${number(row.samples)} samples` },
      { name: "size", label: "Avg. size", title: "Average size of these allocations (estimated)", numeric: true, by: () => 0, cell: (/** @type {Row} */ row) => (row.average_size === null ? "–" : bytes(Math.round(row.average_size))), tip: (/** @type {Row} */ row) => average(row.average_size, row.average_size_error, (value) => bytes(Math.round(value))) },
      { name: "lifetime", label: "Avg. lifetime", title: "How long those that were freed lived, on average (estimated)", numeric: true, by: () => 0, cell: (/** @type {Row} */ row) => time(row.average_lifetime), tip: (/** @type {Row} */ row) => average(row.average_lifetime, row.average_lifetime_error, time) },
      { name: "age", label: "Avg. age", title: "How long those that live have lived, on average (estimated)", numeric: true, by: () => 0, cell: (/** @type {Row} */ row) => time(row.average_age), tip: (/** @type {Row} */ row) => average(row.average_age, row.average_age_error, time) },
      { name: "course", label: "From the first sample to now", title: "Bars: allocated. Line: live. Each has a scale of its own", rem: 14, cell: course, tip: told },
    ];
    this.table = new Table(columns, { label: "Groups of sampled allocations. Click one to see where its allocations were made.", sort: (sort) => change({ sort, page: "0" }), key: (row) => JSON.stringify([common(row)[0], row.path]), open });
    this.note = h("p", { class: "note" });
    this.pages = h("div", { class: "pages" });
    this.stage = h("div", { class: "stage" }, this.table.element);
    this.element = h("div", { class: "graph" }, this.note, this.stage, this.pages);
  }

  get settings() {
    return JSON.stringify([state.sort, state.page, state.aby]);
  }

  async refresh() {
    this.asked = this.settings;
    const sort = SORTS.test(state.sort) ? state.sort : /^(size|lifetime)$/.test(state.aby) ? "key" : "-allocated";
    const offset = Math.max(0, Number(state.page) || 0) * LIMIT;
    const page = await api.allocations({ by: state.aby, sort: sort.replace("-", ""), order: sort.startsWith("-") ? "desc" : "asc", offset, limit: LIMIT });
    const { total } = page;
    [this.whole, this.wholeLive] = [total.alloc_space, total.inuse_space];
    const missing = [
      page.missing_until !== null && `${number(page.missing)} samples freed in the first ${time(page.missing_until)} are missing`,
      page.without_stack > 0 && `${number(page.without_stack)} samples without a stack are left out`,
    ].filter(Boolean).join("; ");
    say(this.note, `${number(total.samples)} samples in ${time(page.seconds)}: allocated ${estimateWithError(total.alloc_space, total.alloc_space_error)}, live ${estimateWithError(total.inuse_space, total.inuse_space_error)}${missing ? ` (${missing})` : ""}. ${number(page.count)} ${page.count === 1 ? "group" : "groups"}. Click one to see where its allocations were made.`);
    set(this.note, { "data-total": total.alloc_space, "data-count": page.count });
    if (page.rows.length === 0) fill(this.stage, notice("No allocation", isFiltered() ? "The filter chooses no allocation." : "None was sampled yet."));
    else if (!this.stage.contains(this.table.element)) fill(this.stage, this.table.element);
    this.table.show(page.rows, sort);
    pages(this.pages, { offset, shown: page.rows.length, count: page.count, limit: LIMIT });
  }

  /** Only other settings need another request. */
  async show() {
    return this.asked === this.settings ? null : this.refresh();
  }
}
