// Tables with any number of rows: only visible rows have elements.

import { h, isNarrow, replace } from "./dom.js";
import { baseName, number } from "./format.js";
import { parseOrder } from "./sort.js";
import { change } from "./state.js";

/** Heights of a row in pixels. On narrow screens it is a touch target. */
const [ROW, NARROW_ROW] = [26, 40];
/** Number of texts that are measured: those with the largest estimated widths. */
const MEASURED = 24;
/** Width of a column of estimates, in rem: `123.4 MiB ± 23.4 MiB`. */
export const ESTIMATE_REM = 12;

/**
 * @template T
 * @typedef {object} Column
 * @property {string} name
 * @property {string} label
 * @property {string} [title] the explanation
 * @property {boolean} [numeric]
 * @property {boolean} [wide] as wide as its longest text; the last column gets the remaining width
 * @property {number} [rem] the width of a text of known length, in rem
 * @property {(row: T) => number} [indent] pixels before the text of a wide column
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
   * @param {{ label: string, sort: (name: string) => void, open?: (row: T) => void, key?: (row: T) => string, keydown?: (event: KeyboardEvent, index: number) => boolean, row?: (element: HTMLElement, row: T) => void, role?: string }} options
   */
  constructor(columns, options) {
    // On narrow screens, names come first, then numbers.
    this.narrow = isNarrow();
    const weight = (/** @type {Column<T>} */ column) => (column.wide ? 2 : column.numeric ? 1 : 0);
    this.columns = this.narrow ? columns.slice().sort((a, b) => weight(b) - weight(a)) : columns;
    this.rowHeight = this.narrow ? NARROW_ROW : ROW;
    this.options = options;
    /** Width of the wide column's longest text so far, in pixels. It never shrinks, so that refreshes do not move columns. */
    this.longest = 0;
    /** @type {T[]} */
    this.rows = [];
    /** Index of the selected row, or -1. */
    this.selected = -1;
    /** The table's height, in pixels, when it was last scrolled to the selected row. */
    this.height = 0;
    /** The sort order (sort.js). */
    this.order = "";
    /** Index of the first row with an element, and the number of rows with elements. */
    this.first = -1;
    this.count = 0;
    this.head = h("div", { class: "row head", role: "row" });
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.grid = h("div", { class: "table", role: options.role ?? "grid", "aria-label": options.label, tabIndex: 0 }, h("div", { role: "rowgroup", class: "head-group" }, this.head), this.body);
    this.element = this.grid;
    this.grid.style.setProperty("--row", `${this.rowHeight}px`);
    const widths = this.columns.map((column, i) => this.width(column, i === this.columns.length - 1));
    this.grid.style.setProperty("--columns", widths.map(({ min, max }) => `minmax(${min}rem, ${max})`).join(" "));
    this.grid.style.setProperty("--min-width", `${widths.reduce((sum, { min }) => sum + min, 0)}rem`);
    this.grid.addEventListener("scroll", () => this.drawVisible());
    this.grid.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.handleKey(event));
    new ResizeObserver(() => this.resized()).observe(this.grid);
  }

  /** Adapts to a new size; a visible selected row stays visible. */
  resized() {
    const height = this.grid.clientHeight;
    const bottom = (this.selected + 1) * this.rowHeight + this.head.offsetHeight - this.grid.scrollTop;
    if (this.selected >= 0 && bottom <= this.height && bottom > height) this.grid.scrollTop += bottom - height;
    this.height = height;
    this.drawVisible();
  }

  /** The minimum width of a column in rem, and its maximum. */
  width(/** @type {Column<T>} */ column, /** @type {boolean} */ last) {
    if (column.wide) return { min: this.narrow ? 13 : 12, max: last || this.narrow ? "1fr" : "var(--wide, 12rem)" };
    if (column.numeric) {
      // On a narrow screen, a long figure wraps onto a second line.
      const rem = this.narrow ? 6 : (column.rem ?? 7.5);
      return { min: rem, max: `${rem}rem` };
    }
    return { min: column.rem ?? 8, max: last && !this.narrow ? "1fr" : `${column.rem ?? 12}rem` };
  }

  /** Fits the wide column to its texts, so that the next column is close to them. */
  fitWideColumn() {
    const column = this.columns.find((column) => column.wide);
    if (!column || this.narrow) return;
    const text = (/** @type {T} */ row) => column.tip?.(row) ?? String(column.cell(row));
    const indent = (/** @type {T} */ row) => column.indent?.(row) ?? 0;
    const estimated = (/** @type {T} */ row) => 8 * text(row).length + indent(row);
    const context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    // Browsers leave the property `font` empty if `font-variant-numeric` is set.
    const { fontSize, fontFamily } = getComputedStyle(this.grid);
    context.font = `${fontSize} ${fontFamily}`;
    const longest = this.rows.map((row) => /** @type {[T, number]} */ ([row, estimated(row)])).sort((a, b) => b[1] - a[1]).slice(0, MEASURED);
    const widths = longest.map(([row]) => context.measureText(text(row)).width + indent(row));
    this.longest = Math.max(this.longest, ...widths);
    const max = this.grid.clientWidth * 0.6 || Infinity;
    this.grid.style.setProperty("--wide", `${Math.min(max, Math.ceil(this.longest) + 28)}px`);
  }

  /** Shows rows, which are in this sort order. */
  show(/** @type {T[]} */ rows, /** @type {string} */ order) {
    const key = this.options.key;
    const selected = key && this.rows[this.selected] !== undefined ? key(this.rows[this.selected]) : null;
    this.rows = rows;
    if (key && selected !== null) this.selected = rows.findIndex((row) => key(row) === selected);
    if (this.selected >= rows.length) this.selected = -1;
    this.grid.setAttribute("aria-rowcount", String(rows.length + 1));
    if (order !== this.order || !this.head.firstChild) this.showHeadings(order);
    this.first = -1;
    this.fitWideColumn();
    this.drawVisible();
  }

  showHeadings(/** @type {string} */ order) {
    this.order = order;
    const { name, descending } = parseOrder(order);
    replace(
      this.head,
      ...this.columns.map((column) => {
        const direction = directionOf(column.name === name, descending);
        const content = column.by ? sortButton(column, direction, () => this.options.sort(nextOrder(column, order))) : h("span", { title: column.title }, column.label);
        return h("div", { role: "columnheader", class: column.numeric ? "num" : "", "aria-sort": column.by ? direction : undefined }, content);
      }),
    );
  }

  /** Creates the elements of the visible rows. */
  drawVisible() {
    const top = Math.max(0, Math.floor(this.grid.scrollTop / this.rowHeight) - 5);
    const count = Math.ceil((this.grid.clientHeight || 600) / this.rowHeight) + 10;
    if (top === this.first && count === this.count) return;
    this.first = top;
    this.count = count;
    this.body.style.height = `${this.rows.length * this.rowHeight}px`;
    replace(this.body, ...this.rows.slice(top, top + count).map((row, i) => this.rowElement(row, top + i)));
  }

  rowElement(/** @type {T} */ row, /** @type {number} */ index) {
    const element = h("div", { class: "row", role: "row", "aria-rowindex": index + 2, "aria-selected": index === this.selected ? "true" : "false" });
    element.style.top = `${index * this.rowHeight}px`;
    for (const column of this.columns) {
      const cell = column.cell(row);
      const tip = column.tip?.(row) ?? (typeof cell === "string" ? cell : undefined);
      element.append(h("div", { role: "gridcell", class: column.numeric ? "num" : "", title: tip }, cell));
    }
    element.addEventListener("click", () => {
      this.select(index);
      this.options.open?.(row);
    });
    this.options.row?.(element, row);
    return element;
  }

  /** Selects a row and scrolls it into view. */
  select(/** @type {number} */ index) {
    this.selected = Math.max(0, Math.min(this.rows.length - 1, index));
    const top = this.selected * this.rowHeight;
    const lowest = this.grid.clientHeight - this.head.offsetHeight - this.rowHeight;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top > this.grid.scrollTop + lowest) this.grid.scrollTop = top - lowest;
    this.height = this.grid.clientHeight;
    // On narrow screens the table extends below the window, and the details cover the window's lower edge.
    const covered = this.grid.closest(".graph")?.querySelector(".selection");
    const bottom = Math.ceil(this.grid.getBoundingClientRect().top) + 2 * this.grid.clientTop + this.head.offsetHeight + top + this.rowHeight - this.grid.scrollTop;
    scrollBy(0, Math.max(0, bottom + (covered instanceof HTMLElement ? covered.offsetHeight : 0) - innerHeight));
    this.first = -1;
    this.drawVisible();
  }

  handleKey(/** @type {KeyboardEvent} */ event) {
    if (event.target !== this.grid) return;
    if (this.options.keydown?.(event, this.selected)) return event.preventDefault();
    const page = Math.max(1, Math.floor(this.grid.clientHeight / this.rowHeight) - 2);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined && this.rows.length) {
      this.select(by === -Infinity ? 0 : by === Infinity ? this.rows.length - 1 : this.selected + by);
      event.preventDefault();
    } else if (event.key === "Enter" && this.rows[this.selected]) {
      this.options.open?.(this.rows[this.selected]);
      event.preventDefault();
    }
  }
}

/** The order after a click on a heading: numbers descending, names ascending; a second click reverses it. */
function nextOrder(/** @type {Column<any>} */ column, /** @type {string} */ order) {
  const [ascending, descending] = [column.name, `-${column.name}`];
  const [first, second] = column.numeric ? [descending, ascending] : [ascending, descending];
  return order === first ? second : first;
}

/** The sort direction of a heading, as `aria-sort` names it. */
export function directionOf(/** @type {boolean} */ isSorted, /** @type {boolean} */ descending) {
  return !isSorted ? "none" : descending ? "descending" : "ascending";
}

/** The button of a heading that sorts by its column. */
export function sortButton(/** @type {{ label: string, title?: string }} */ { label, title }, /** @type {string} */ direction, /** @type {() => void} */ onclick) {
  const arrow = /** @type {Record<string, string>} */ ({ none: "", descending: " ▾", ascending: " ▴" })[direction];
  return h("button", { class: "sort", title: title || null, onclick }, label, h("span", { "aria-hidden": "true" }, arrow));
}

/** The button that opens or closes a row. */
export function toggleButton(/** @type {boolean} */ isOpen, /** @type {((event: Event) => void) | undefined} */ onclick = undefined) {
  return h("button", { class: "toggle", tabIndex: -1, "aria-label": isOpen ? "close" : "open", onclick }, isOpen ? "▾" : "▸");
}

/** A path. In a narrow cell the directory is truncated, the file name is not. */
export function pathCell(/** @type {string} */ path) {
  const name = baseName(path);
  return h("span", { class: "path" }, h("span", { class: "directory" }, path.slice(0, path.length - name.length)), h("span", {}, name));
}

/** A number with a bar that shows its share of a whole. */
export function bar(/** @type {string} */ text, /** @type {number} */ part, /** @type {number} */ whole, colour = "") {
  const fraction = whole > 0 ? Math.min(1, Math.abs(part) / whole) : 0;
  const line = h("i", { class: `bar ${colour}` });
  line.style.width = `${(100 * fraction).toFixed(2)}%`;
  return h("span", { class: "barred" }, line, h("span", {}, text));
}

/** Shows the range of rows on this page, with buttons to the previous and the next page; hidden if there is only one page. */
export function showPager(/** @type {HTMLElement} */ box, /** @type {{ offset: number, shown: number, count: number, limit: number }} */ { offset, shown, count, limit }) {
  const page = offset / limit;
  const button = (/** @type {number} */ next, /** @type {string} */ text) =>
    h("button", { class: "small", disabled: next < 0 || next * limit >= count, onclick: () => change({ page: String(next) }) }, text);
  replace(box, button(page - 1, "← previous"), h("span", {}, count ? `${number(offset + 1)} to ${number(offset + shown)} of ${number(count)}` : "none"), button(page + 1, "next →"));
  box.hidden = count <= limit;
}
