// Sortable tables with any number of rows: only visible rows have elements.

import { fill, h } from "./dom.js";
import { number } from "./format.js";
import { change } from "./state.js";

/** Heights of a row in pixels: on narrow screens, a finger has to hit one. */
const [ROW, NARROW_ROW] = [26, 40];
/** Number of the longest names whose width is measured. */
const MEASURED = 24;
/** Width of a column of estimates, in rem: `123.4 MiB ± 23.4 MiB`. */
export const ESTIMATE = 10.5;

/**
 * @template T
 * @typedef {object} Column
 * @property {string} name
 * @property {string} label
 * @property {string} [title] what it counts
 * @property {boolean} [numeric]
 * @property {boolean} [wide] as wide as its longest text; the last column takes the remaining width
 * @property {number} [rem] the width of a text of known length, in rem
 * @property {(row: T) => number} [indent] pixels before a text of a wide column
 * @property {(row: T) => any} cell text or an element
 * @property {(row: T) => string} [tip]
 * @property {(row: T) => number | string} [by] sort key; a column without it is not sortable
 */

/**
 * @template T
 */
export class Table {
  /**
   * @param {Column<T>[]} columns
   * @param {{ label: string, sort: (name: string) => void, open?: (row: T) => void, key?: (row: T) => string, keydown?: (event: KeyboardEvent, at: number) => boolean, row?: (element: HTMLElement, row: T) => void, role?: string }} does
   */
  constructor(columns, does) {
    // On narrow screens, names come first, then numbers.
    this.narrow = matchMedia("(max-width: 700px)").matches;
    const weight = (/** @type {Column<T>} */ column) => (column.wide ? 2 : column.numeric ? 1 : 0);
    this.columns = this.narrow ? columns.slice().sort((a, b) => weight(b) - weight(a)) : columns;
    this.row = this.narrow ? NARROW_ROW : ROW;
    this.does = does;
    /** Width of the wide column's longest text so far, in pixels: a refresh moves no columns back and forth. */
    this.longest = 0;
    /** @type {T[]} */
    this.rows = [];
    this.at = -1;
    /** The height in pixels that the scroll position is made for. */
    this.height = 0;
    this.sorted = "";
    /** Index of the first row with an element, and how many have one. */
    this.first = -1;
    this.count = 0;
    this.head = h("div", { class: "row head", role: "row" });
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.grid = h("div", { class: "table", role: does.role ?? "grid", "aria-label": does.label, tabIndex: 0 }, h("div", { role: "rowgroup", class: "head-group" }, this.head), this.body);
    this.element = this.grid;
    this.grid.style.setProperty("--row", `${this.row}px`);
    const widths = this.columns.map((column, i) => this.width(column, i === this.columns.length - 1));
    this.grid.style.setProperty("--columns", widths.map(({ least, most }) => `minmax(${least}rem, ${most})`).join(" "));
    this.grid.style.setProperty("--least", `${widths.reduce((sum, { least }) => sum + least, 0)}rem`);
    this.grid.addEventListener("scroll", () => this.window());
    this.grid.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    new ResizeObserver(() => this.resized()).observe(this.grid);
  }

  /** Shows the rows that fit; a selected row that was in view stays in view. */
  resized() {
    const height = this.grid.clientHeight;
    const bottom = (this.at + 1) * this.row + this.head.offsetHeight - this.grid.scrollTop;
    if (this.at >= 0 && bottom <= this.height && bottom > height) this.grid.scrollTop += bottom - height;
    this.height = height;
    this.window();
  }

  width(/** @type {Column<T>} */ column, /** @type {boolean} */ last) {
    if (column.wide) return { least: this.narrow ? 13 : 12, most: last || this.narrow ? "1fr" : "var(--wide, 12rem)" };
    if (column.numeric) {
      // On a narrow screen, a long figure has two lines.
      const rem = this.narrow ? 6 : (column.rem ?? 7.5);
      return { least: rem, most: `${rem}rem` };
    }
    return { least: column.rem ?? 8, most: last && !this.narrow ? "1fr" : `${column.rem ?? 12}rem` };
  }

  /** Fits the wide column to its texts, so that the next column is beside them. */
  measure() {
    const column = this.columns.find((column) => column.wide);
    if (!column || this.narrow) return;
    const text = (/** @type {T} */ row) => column.tip?.(row) ?? String(column.cell(row));
    const indent = (/** @type {T} */ row) => column.indent?.(row) ?? 0;
    const size = (/** @type {T} */ row) => 8 * text(row).length + indent(row);
    const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    // Not the property `font`: with digits of one width, browsers leave it empty.
    const { fontSize, fontFamily } = getComputedStyle(this.grid);
    pen.font = `${fontSize} ${fontFamily}`;
    const longest = this.rows.map((row) => /** @type {[T, number]} */ ([row, size(row)])).sort((a, b) => b[1] - a[1]).slice(0, MEASURED);
    const widths = longest.map(([row]) => pen.measureText(text(row)).width + indent(row));
    this.longest = Math.max(this.longest, ...widths);
    const most = this.grid.clientWidth * 0.6 || Infinity;
    this.grid.style.setProperty("--wide", `${Math.min(most, Math.ceil(this.longest) + 28)}px`);
  }

  /** Shows rows in the given order, and marks the column that they are sorted by. */
  show(/** @type {T[]} */ rows, /** @type {string} */ sorted) {
    const key = this.does.key;
    const kept = key && this.rows[this.at] !== undefined ? key(this.rows[this.at]) : null;
    this.rows = rows;
    if (key && kept !== null) this.at = rows.findIndex((row) => key(row) === kept);
    if (this.at >= rows.length) this.at = -1;
    this.grid.setAttribute("aria-rowcount", String(rows.length + 1));
    if (sorted !== this.sorted || !this.head.firstChild) this.heading(sorted);
    this.first = -1;
    this.measure();
    this.window();
  }

  heading(/** @type {string} */ sorted) {
    this.sorted = sorted;
    const [name, down] = sorted.startsWith("-") ? [sorted.slice(1), true] : [sorted, false];
    fill(
      this.head,
      ...this.columns.map((column) => {
        const order = column.name === name ? (down ? "descending" : "ascending") : "none";
        const content = column.by
          ? h("button", { class: "sort", title: column.title, onclick: () => this.does.sort(next(column, sorted)) }, column.label, h("span", { "aria-hidden": "true" }, order === "none" ? "" : down ? " ▾" : " ▴"))
          : h("span", { title: column.title }, column.label);
        return h("div", { role: "columnheader", class: column.numeric ? "num" : "", "aria-sort": column.by ? order : undefined }, content);
      }),
    );
  }

  /** Creates the elements of the visible rows. */
  window() {
    const top = Math.max(0, Math.floor(this.grid.scrollTop / this.row) - 5);
    const count = Math.ceil((this.grid.clientHeight || 600) / this.row) + 10;
    if (top === this.first && count === this.count) return;
    this.first = top;
    this.count = count;
    this.body.style.height = `${this.rows.length * this.row}px`;
    fill(this.body, ...this.rows.slice(top, top + count).map((row, i) => this.line(row, top + i)));
  }

  line(/** @type {T} */ row, /** @type {number} */ index) {
    const element = h("div", { class: "row", role: "row", "aria-rowindex": index + 2, "aria-selected": index === this.at ? "true" : "false" });
    element.style.top = `${index * this.row}px`;
    for (const column of this.columns) {
      const cell = column.cell(row);
      const tip = column.tip?.(row) ?? (typeof cell === "string" ? cell : undefined);
      element.append(h("div", { role: "gridcell", class: column.numeric ? "num" : "", title: tip }, cell));
    }
    element.addEventListener("click", () => {
      this.select(index);
      this.does.open?.(row);
    });
    this.does.row?.(element, row);
    return element;
  }

  select(/** @type {number} */ index) {
    this.at = Math.max(0, Math.min(this.rows.length - 1, index));
    const top = this.at * this.row;
    const room = this.grid.clientHeight - this.head.offsetHeight - this.row;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top > this.grid.scrollTop + room) this.grid.scrollTop = top - room;
    this.height = this.grid.clientHeight;
    // On narrow screens the table ends below the window, and details cover the window's lower edge.
    const covered = this.grid.closest(".graph")?.querySelector(".selection");
    const bottom = Math.ceil(this.grid.getBoundingClientRect().top) + 2 * this.grid.clientTop + this.head.offsetHeight + top + this.row - this.grid.scrollTop;
    scrollBy(0, Math.max(0, bottom + (covered instanceof HTMLElement ? covered.offsetHeight : 0) - innerHeight));
    this.first = -1;
    this.window();
  }

  key(/** @type {KeyboardEvent} */ event) {
    if (event.target !== this.grid) return;
    if (this.does.keydown?.(event, this.at)) return event.preventDefault();
    const page = Math.max(1, Math.floor(this.grid.clientHeight / this.row) - 2);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined && this.rows.length) {
      this.select(by === -Infinity ? 0 : by === Infinity ? this.rows.length - 1 : this.at + by);
      event.preventDefault();
    } else if (event.key === "Enter" && this.rows[this.at]) {
      this.does.open?.(this.rows[this.at]);
      event.preventDefault();
    }
  }
}

/** The order after a click on a heading: numbers descending, names ascending; a second click reverses it. */
function next(/** @type {Column<any>} */ column, /** @type {string} */ sorted) {
  const first = column.numeric ? `-${column.name}` : column.name;
  const second = column.numeric ? column.name : `-${column.name}`;
  return sorted === first ? second : first;
}

/**
 * @template T
 * @param {T[]} rows
 * @param {Column<T>[]} columns
 * @param {string} sorted
 */
export function sort(rows, columns, sorted) {
  const down = sorted.startsWith("-");
  const by = columns.find((column) => column.name === (down ? sorted.slice(1) : sorted))?.by;
  if (!by) return rows;
  const compare = (/** @type {T} */ a, /** @type {T} */ b) => {
    const [x, y] = [by(a), by(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  };
  return rows.slice().sort(down ? (a, b) => compare(b, a) : compare);
}

/** A path, of which the last part stays readable when there is no room for all of it. */
export function pathCell(/** @type {string} */ path) {
  const name = path.lastIndexOf("/") + 1;
  return h("span", { class: "path" }, h("span", { class: "directory" }, path.slice(0, name)), h("span", {}, path.slice(name)));
}

/** A number with a bar in the background that shows its share. */
export function bar(/** @type {string} */ text, /** @type {number} */ part, /** @type {number} */ whole, colour = "") {
  const fraction = whole > 0 ? Math.min(1, Math.abs(part) / whole) : 0;
  const mark = h("i", { class: `bar ${colour}` });
  mark.style.width = `${(100 * fraction).toFixed(2)}%`;
  return h("span", { class: "barred" }, mark, h("span", {}, text));
}

/** Shows which rows of how many there are, with buttons to the next and the previous ones; hidden if one page has all. */
export function pages(/** @type {HTMLElement} */ box, /** @type {{ offset: number, shown: number, count: number, limit: number }} */ { offset, shown, count, limit }) {
  const page = offset / limit;
  const to = (/** @type {number} */ next, /** @type {string} */ text) =>
    h("button", { class: "small", disabled: next < 0 || next * limit >= count, onclick: () => change({ page: String(next) }) }, text);
  fill(box, to(page - 1, "← previous"), h("span", {}, count ? `${number(offset + 1)} to ${number(offset + shown)} of ${number(count)}` : "none"), to(page + 1, "next →"));
  box.hidden = count <= limit;
}
