// The rows of the list: pages of messages and logs merged by time, and new rows from the stream. All of it is bounded.

import { ApiError, get, readEvents, urlOf } from "./api.js";
import { messageOf } from "./dom.js";
import { compareTimes } from "./format.js";
import { logParameters, messageParameters, showsLogs, showsMessages } from "./state.js";

/** @typedef {{ type: "message" | "log" | "lost", key: string, time: string, time_ms: number, id: number, count?: number, [field: string]: any }} Row */

/** Rows of a request. */
const PAGE = 200;
/** Maximum number of rows in memory; beyond it the oldest are dropped, and loaded again when they are wanted. */
const MAX_ROWS = 20_000;
/** Maximum number of new rows that wait to be shown. */
const MAX_WAITING = 5_000;
/** Interval at which new rows are shown, in ms. */
const FLUSH_MS = 200;
/** Pauses between attempts to connect again, in ms. */
const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

/** Newest first. */
const newer = (/** @type {Row} */ a, /** @type {Row} */ b) => compareTimes(b.time, a.time) || b.id - a.id;

/** Rows that the recorder left out, according to rows that say so. */
const lostOf = (/** @type {Row[]} */ rows) => rows.reduce((sum, row) => sum + (row.count === undefined ? 0 : row.count - 1), 0);

/** One of the lists that are merged: its next rows, from the newest to the oldest. */
class Lane {
  constructor(/** @type {"message" | "log"} */ type, /** @type {string} */ path, /** @type {Record<string, string>} */ parameters) {
    this.type = type;
    this.path = path;
    this.parameters = parameters;
    /** Rows that were fetched and not yet taken. @type {Row[]} */
    this.rows = [];
    /** Cursor of the next page; `null` at the end. @type {string | number | null} */
    this.next = "";
    /** The newest id of the first page: the stream may have its rows, too. */
    this.newest = -1;
    this.hasBegun = false;
  }

  row(/** @type {any} */ item) {
    return { ...item, type: this.type, key: `${this.type}-${item.id}` };
  }

  /** Fetches the next page if no row is left. */
  async fill() {
    if (this.rows.length || this.next === null) return;
    const page = await get(this.path, { ...this.parameters, limit: PAGE, cursor: this.next });
    this.hasBegun = true;
    this.next = page.next ?? null;
    this.rows = page.items.map((/** @type {any} */ item) => this.row(item));
    this.newest = Math.max(this.newest, this.rows[0]?.id ?? -1);
  }

  /** Continues at this row, which was dropped. */
  restartAt(/** @type {Row} */ row) {
    this.rows = [];
    this.next = row.id;
  }
}

/**
 * @typedef {object} Callbacks
 * @property {() => void} changed rows, or the number of waiting ones, changed
 * @property {(status: string, why: string) => void} connection
 * @property {() => boolean} isHeld whether new rows wait
 */

export class Feed {
  constructor(/** @type {Callbacks} */ callbacks) {
    this.callbacks = callbacks;
    /** Newest first. @type {Row[]} */
    this.rows = [];
    /** New rows that are not shown yet, in the order in which they came. @type {Row[]} */
    this.waiting = [];
    /** Number of new rows that are not shown yet, those included that were dropped. */
    this.waitingCount = 0;
    /** @type {Lane[]} */
    this.lanes = [];
    this.isLoading = false;
    this.error = "";
    this.stop = new AbortController();
    this.lastId = "";
    setInterval(() => this.flush(), FLUSH_MS);
  }

  /** Shows what the state selects, from its newest row on. */
  restart() {
    this.lastId = "";
    this.load();
    this.connect();
  }

  /** Begins with the newest rows, without those that wait: the first page has them. */
  load() {
    this.rows = [];
    this.waiting = [];
    this.waitingCount = 0;
    this.error = "";
    this.isLoading = false;
    this.lanes = [];
    if (showsMessages()) this.lanes.push(new Lane("message", "messages", messageParameters()));
    if (showsLogs()) this.lanes.push(new Lane("log", "logs", logParameters()));
    this.older();
  }

  disconnect() {
    this.stop.abort();
    this.stop = new AbortController();
  }

  /** Follows the stream, and connects again when it ends, until it is stopped. */
  async connect() {
    this.disconnect();
    const { signal } = this.stop;
    for (let attempt = 0; !signal.aborted; ) {
      const opened = () => {
        attempt = 0;
        // Rows may have come between the first page and now.
        if (!this.lastId) this.load();
        this.callbacks.connection("live", "");
      };
      try {
        await readEvents(this.streamUrl(), this.lastId, signal, opened, (...event) => this.receive(...event));
      } catch (error) {
        if (signal.aborted) return;
        const isRefused = error instanceof ApiError && error.status >= 400 && error.status < 500;
        this.callbacks.connection(isRefused ? "refused" : "lost", messageOf(error));
        if (isRefused) return;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[attempt]));
      attempt = Math.min(attempt + 1, RETRY_MS.length - 1);
    }
  }

  streamUrl() {
    const logs = showsLogs() && { logs: "true", ...logParameters() };
    return urlOf("stream", { ...logs, ...messageParameters(), messages: String(showsMessages()) });
  }

  /** Takes an event of the stream. */
  receive(/** @type {string} */ name, /** @type {any} */ data, /** @type {string} */ id) {
    if (id) this.lastId = id;
    if (data === null) return;
    if (name === "lost") return this.wait(this.lostRow(data));
    const lane = this.lanes.find((lane) => lane.type === name);
    if (lane) this.wait(lane.row(data));
  }

  /** A row that says how many rows the recorder left out of the stream. @returns {Row} */
  lostRow(/** @type {any} */ data) {
    const numbers = Object.values(data).filter((value) => typeof value === "number");
    const before = this.waiting.at(-1) ?? this.rows[0];
    const id = (before?.id ?? 0) + 0.5;
    const count = numbers.reduce((sum, value) => sum + value, 0);
    return { type: "lost", key: `lost-${performance.now()}`, time: before?.time ?? "0", time_ms: before?.time_ms ?? 0, id, count };
  }

  wait(/** @type {Row} */ row) {
    this.waiting.push(row);
    this.waitingCount += row.count ?? 1;
    if (this.waiting.length > 2 * MAX_WAITING) this.waiting.splice(0, MAX_WAITING);
  }

  /** Shows the rows that wait, unless the list is held. */
  flush(force = false) {
    if (!this.waitingCount || !this.lanes.every((lane) => lane.hasBegun)) return;
    if (force || !this.callbacks.isHeld()) this.release();
    this.callbacks.changed();
  }

  release() {
    // Some were dropped: the first pages have them.
    if (this.waitingCount > this.waiting.length + lostOf(this.waiting)) return this.load();
    const isNew = (/** @type {Row} */ row) => this.lanes.every((lane) => lane.type !== row.type || row.id > lane.newest);
    const batch = this.waiting.filter(isNew).sort(newer);
    this.waiting = [];
    this.waitingCount = 0;
    if (!batch.length) return;
    // Times of logs are those of their lines, so that some rows belong below some that are already shown.
    const oldest = /** @type {Row} */ (batch.at(-1));
    let overlap = 0;
    while (overlap < Math.min(this.rows.length, 1000) && newer(this.rows[overlap], oldest) < 0) overlap++;
    const top = batch.concat(this.rows.slice(0, overlap)).sort(newer);
    this.rows = top.concat(this.rows.slice(overlap));
    this.trim();
  }

  /** Drops the oldest rows beyond the limit; their lanes begin again there. */
  trim() {
    if (this.rows.length <= MAX_ROWS) return;
    const dropped = this.rows.splice(MAX_ROWS * 0.9);
    for (const lane of this.lanes) {
      const first = dropped.find((row) => row.type === lane.type);
      if (first) lane.restartAt(first);
    }
  }

  /** Whether there are no older rows. */
  get isComplete() {
    return this.lanes.every((lane) => lane.next === null && !lane.rows.length);
  }

  /** Loads a page of older rows. */
  async older() {
    if (this.isLoading || this.isComplete || this.rows.length >= MAX_ROWS) return;
    this.isLoading = true;
    const { lanes } = this;
    try {
      for (let taken = 0; taken < PAGE; taken++) {
        // A page without rows is not the end: the recorder searches only for a while.
        const isSearching = () => lanes === this.lanes && lanes.some((lane) => !lane.rows.length && lane.next !== null);
        while (isSearching()) await Promise.all(lanes.map((lane) => lane.fill()));
        if (lanes !== this.lanes) return;
        const full = lanes.filter((lane) => lane.rows.length);
        if (!full.length) break;
        const lane = full.reduce((best, lane) => (newer(lane.rows[0], best.rows[0]) < 0 ? lane : best));
        this.rows.push(/** @type {Row} */ (lane.rows.shift()));
      }
      this.error = "";
    } catch (error) {
      if (lanes !== this.lanes) return;
      this.error = messageOf(error);
    }
    this.isLoading = false;
    this.callbacks.changed();
  }
}
