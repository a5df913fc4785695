// The list: only the rows in the window are elements, so that its length costs nothing.

import { button, h, isNarrow, replace, setText } from "./dom.js";
import { count, day, exactClock, fullTime, number, size, visible } from "./format.js";

/** @typedef {import("./feed.js").Row} Row */
/** @typedef {import("./feed.js").Feed} Feed */

/** Rows that are drawn above and below the window. */
const MARGIN = 8;
/** Maximum length of texts in a row; details show all. */
const MAX_TEXT = 400;

/** Names of the columns. */
const COLUMNS = ["Time", "Direction", "Peer", "Kind", "Size", "Content"];

export class List {
  /**
   * @param {Feed} feed
   * @param {{ select: (row: Row | null) => void, empty: () => Node }} callbacks
   */
  constructor(feed, callbacks) {
    this.feed = feed;
    this.callbacks = callbacks;
    /** The key of the row with the cursor; empty without. */
    this.cursor = "";
    /** Elements of the rows in the window, by key. @type {Map<string, any>} */
    this.drawn = new Map();
    const names = COLUMNS.map((name) => h("span", { role: "columnheader", class: name.toLowerCase() }, name));
    this.head = h("div", { role: "row", class: "row head", "aria-rowindex": 1 }, ...names);
    this.body = h("div", { role: "rowgroup", class: "rows" });
    this.grid = h("div", { role: "grid", class: "grid", tabIndex: 0, id: "list", "aria-label": "Messages and logs, newest first" }, h("div", { role: "rowgroup", class: "heads" }, this.head), this.body);
    this.fresh = h("button", { type: "button", class: "fresh", hidden: true, title: "Show the new rows (g)", onclick: () => this.toTop() });
    this.foot = h("p", { class: "foot faint", role: "status" });
    this.element = h("div", { class: "list" }, this.fresh, this.grid, this.foot);
    this.grid.addEventListener("scroll", () => this.changed());
    this.body.addEventListener("click", (/** @type {any} */ event) => this.clicked(event));
    addEventListener("resize", () => this.changed());
  }

  /** Whether new rows would move what the user looks at. */
  get isHeld() {
    return this.grid.scrollTop > 0 || this.cursor !== "";
  }

  get rowHeight() {
    return isNarrow() ? 46 : 26;
  }

  changed() {
    cancelAnimationFrame(this.frame ?? 0);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { rows, isLoading, isComplete, waitingCount } = this.feed;
    const isEmpty = !rows.length && !isLoading;
    this.grid.classList.toggle("empty", isEmpty);
    if (isEmpty) {
      this.drawn.clear();
      replace(this.body, h("div", { role: "row" }, h("div", { role: "gridcell" }, this.callbacks.empty())));
      this.body.style.height = "";
    } else this.drawRows();
    this.fresh.hidden = !waitingCount || !this.feed.callbacks.isHeld();
    setText(this.fresh, `↑ ${number(waitingCount)} new`);
    const state = this.feed.error ? `Older rows cannot be loaded: ${this.feed.error}` : isLoading ? "Loading…" : isComplete ? `${count(rows.length, "row")}: all that there are` : `${count(rows.length, "row")} loaded; scroll for older ones`;
    setText(this.foot, isEmpty ? "" : state);
  }

  drawRows() {
    const { rows } = this.feed;
    const height = this.rowHeight;
    const first = Math.max(0, Math.floor(this.grid.scrollTop / height) - MARGIN);
    const last = Math.min(rows.length, Math.ceil((this.grid.scrollTop + this.grid.clientHeight) / height) + MARGIN);
    this.body.style.height = `${rows.length * height}px`;
    this.grid.setAttribute("aria-rowcount", this.feed.isComplete ? rows.length + 1 : -1);
    const kept = new Map();
    for (let index = first; index < last; index++) {
      const row = rows[index];
      const element = this.drawn.get(row.key) ?? rowElement(row);
      kept.set(row.key, element);
      const top = `${index * height}px`;
      if (element.style.top !== top) {
        element.style.top = top;
        element.setAttribute("aria-rowindex", index + 2);
      }
      element.setAttribute("aria-selected", row.key === this.cursor);
      if (!element.isConnected) this.body.append(element);
    }
    for (const element of [...this.body.children]) if (!kept.has(element.dataset.key)) element.remove();
    this.drawn = kept;
    if (kept.has(this.cursor)) this.grid.setAttribute("aria-activedescendant", this.cursor);
    else this.grid.removeAttribute("aria-activedescendant");
    if (last > rows.length - 30) this.feed.older();
  }

  clicked(/** @type {any} */ event) {
    if (event.target.closest("button")) return;
    const key = event.target.closest("[data-key]")?.dataset.key;
    const row = this.feed.rows.find((row) => row.key === key);
    if (row && row.type !== "lost") this.select(row);
  }

  /** Puts the cursor on a row, and shows its details. */
  select(/** @type {Row | null} */ row) {
    this.cursor = row?.key ?? "";
    this.callbacks.select(row);
    this.changed();
  }

  /** Moves the cursor by so many rows. */
  move(/** @type {number} */ by) {
    const { rows } = this.feed;
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.key === this.cursor);
    let next = at < 0 ? Math.floor(this.grid.scrollTop / this.rowHeight) : at + by;
    while (rows[next]?.type === "lost") next += by;
    next = Math.max(0, Math.min(rows.length - 1, next));
    this.cursor = rows[next].key;
    this.show(next);
    this.changed();
    return rows[next];
  }

  /** Scrolls a row into the window. */
  show(/** @type {number} */ index) {
    const top = index * this.rowHeight;
    const room = this.grid.clientHeight - this.head.clientHeight - this.rowHeight;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top > this.grid.scrollTop + room) this.grid.scrollTop = top - room;
  }

  /** The row with the cursor. */
  get current() {
    return this.feed.rows.find((row) => row.key === this.cursor);
  }

  /** Shows the newest rows, and from then on the new ones. */
  toTop() {
    this.select(null);
    this.grid.scrollTop = 0;
    this.feed.flush(true);
  }
}

/** A value that filters when it is clicked. The details have the same for the keyboard. */
export function filterValue(/** @type {string} */ filter, /** @type {string} */ value, /** @type {string} */ label = value, tabIndex = 0) {
  return h("button", { type: "button", class: "value", tabIndex, "data-filter": filter, "data-value": value, title: `Show only ${visible(value, 200)}` }, visible(label, MAX_TEXT));
}

function rowElement(/** @type {Row} */ row) {
  const cells = row.type === "message" ? messageCells(row) : row.type === "log" ? logCells(row) : lostCells(row);
  const level = row.type === "log" ? ` level-${row.level.toLowerCase()}` : "";
  return h("div", { role: "row", class: `row ${row.type}${level}${row.error ? " faulty" : ""}`, id: row.key, "data-key": row.key }, ...cells);
}

const cell = (/** @type {string} */ name, /** @type {any[]} */ ...content) => h("span", { role: "gridcell", class: name }, ...content);

/** The time of day; with the date if it is not today. */
function timeCell(/** @type {Row} */ row) {
  const date = day(row.time_ms);
  const old = date !== day(Date.now()) && h("small", {}, `${date.slice(5)} `);
  return h("span", { role: "gridcell", class: "time", title: fullTime(row.time) }, old, exactClock(row.time_ms));
}

function messageCells(/** @type {Row} */ row) {
  const direction = row.incoming ? "received" : "sent";
  return [
    timeCell(row),
    h("span", { role: "gridcell", class: `direction ${direction}` }, h("button", { type: "button", class: "value", tabIndex: -1, "data-filter": "incoming", "data-value": String(row.incoming), title: `${direction}; click to show only these`, "aria-label": direction }, row.incoming ? "←" : "→")),
    cell("peer", filterValue("address", row.address, row.address, -1)),
    cell("kind", h("i", { class: `dot ${row.category}` }), filterValue("kinds", row.kind, row.kind, -1)),
    cell("size", size(row.size)),
    cell("content", row.error && h("b", { class: "bad" }, "error"), row.error && ` ${visible(row.error, MAX_TEXT)} `, row.hash && filterValue("hash", row.hash, row.hash, -1), row.hash && " ", visible(row.preview ?? "", MAX_TEXT)),
  ];
}

function logCells(/** @type {Row} */ row) {
  return [
    timeCell(row),
    cell("direction", h("span", { title: "log" }, "≡")),
    cell("peer", visible(row.section, MAX_TEXT)),
    cell("kind", filterValue("levels", row.level, row.level, -1)),
    cell("size"),
    cell("content", visible(row.message, MAX_TEXT)),
  ];
}

function lostCells(/** @type {Row} */ row) {
  const reload = button("Reload", () => dispatchEvent(new Event("reload")), { tabIndex: -1 });
  return [cell("content", h("b", { class: "warn" }, `${count(row.count ?? 0, "row")} left out`), " because they came faster than this page could take them. They are recorded. ", reload)];
}
