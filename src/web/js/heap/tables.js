// The tables of a heap snapshot and of the difference of two. A table that the report has and this file does not name is
// shown, too, with the names of its columns.

import { fill, h } from "../dom.js";
import { bytes, change as signed, exact, number } from "../format.js";
import { bar } from "../table.js";
import { place, rootName, words } from "./glossary.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{ key: any[], from: number[] | null, to: number[] | null }} DiffRow */
/** @typedef {{ name: string, keys: string[], columns: string[], rows: DiffRow[] }} DiffTable */
/**
 * A column of a table.
 * @typedef {object} Column
 * @property {string} label
 * @property {string} [title] what it counts
 * @property {boolean} [numeric]
 * @property {(row: any) => any} cell
 * @property {(row: any) => number | string} by sort key
 * @property {(row: any) => string} [tip]
 */
/** Rows shown before the others are asked for. */
const FEW = 12;

/** Columns of bytes and of addresses, by their names. */
const BYTES = /(^|_)(bytes|resident|pinned|own|size|anonymous)$|^pinned_beside_samples$/;
/** Columns that are stacks, and such of bytes, in the tables of the heap by stack. */
const STACKS = /^(stack|head|grown_by)$/;
const OF_STACKS = /^(live|overhead|unreachable|requested)$/;
const ADDRESSES = /(^|_)(address|example)$/;

function isBytes(/** @type {string} */ table, /** @type {string} */ column) {
  return (table === "arenas" && column !== "chunks") || (table.startsWith("by_stack.") && OF_STACKS.test(column)) || BYTES.test(column);
}

/** A size class: `17 to 32`, or its only size. */
export function sizeName(/** @type {number} */ from, /** @type {number} */ to) {
  return to - from < 16 ? number(to) : `${number(from)} to ${number(to)}`;
}

/** The text of a value in a column of text. */
function keyText(/** @type {string} */ table, /** @type {string} */ column, /** @type {any} */ value) {
  if (table === "grown_by.rows" || (table.startsWith("by_stack.") && STACKS.test(column) && value)) return value.split(";").reverse().join(" ← ");
  const known = words(table).values?.[column] ?? {};
  return Object.hasOwn(known, value) ? known[value] : String(value ?? "–");
}

/** Those columns that this file names first, in its order. */
function ordered(/** @type {string} */ table, /** @type {string[]} */ columns) {
  const known = Object.keys(words(table).columns ?? {}).filter((name) => columns.includes(name));
  return [...known, ...columns.filter((name) => !known.includes(name))];
}

/** The columns of a table, by its first row. @returns {Column[]} */
function columns(/** @type {string} */ table, /** @type {Row[]} */ rows) {
  const all = Object.keys(rows[0]).filter((name) => ["string", "number", "boolean"].includes(typeof rows[0][name]) || rows[0][name] === null || name === "retained_by").filter((name) => !name.endsWith("_error"));
  const isSize = table === "sizes";
  const own = all.filter((name) => (isSize ? !["from", "to"].includes(name) : table !== "arenas" || name !== "kind"));
  const made = ordered(table, own).map((name) => column(table, name, rows));
  if (isSize) made.unshift({ label: "size", title: "Bytes of a chunk, with its header", by: (row) => row.to, cell: (row) => sizeName(row.from, row.to) });
  return made;
}

/** @returns {Column} */
function column(/** @type {string} */ table, /** @type {string} */ name, /** @type {Row[]} */ rows) {
  const [label, title] = words(table).columns?.[name] ?? [name.replaceAll("_", " "), ""];
  const by = (/** @type {Row} */ row) => row[name] ?? 0;
  if (name === "retained_by") return { label, title, by: (row) => row.retained_by.length, cell: (row) => h("div", {}, ...row.retained_by.map(retainer)) };
  if (ADDRESSES.test(name)) return { label, title, numeric: true, by, cell: (row) => (typeof row[name] === "number" ? `0x${row[name].toString(16)}` : String(row[name] ?? "–")) };
  if (rows.some((row) => typeof row[name] === "number")) {
    const show = isBytes(table, name) ? bytes : number;
    const error = (/** @type {Row} */ row) => row[`${name}_error`];
    const text = (/** @type {Row} */ row) => (error(row) ? `${show(row[name])} ± ${show(error(row))}` : show(row[name]));
    if (show === number) return { label, title, numeric: true, by, cell: text };
    const most = rows.reduce((most, row) => Math.max(most, row[name] ?? 0), 0);
    return { label, title, numeric: true, by, cell: (row) => bar(text(row), row[name], most), tip: (row) => exact(row[name]) };
  }
  return { label, title, by: (row) => keyText(table, name, row[name]), cell: (row) => keyText(table, name, row[name]) };
}

/** The columns of a table of differences. @returns {Column[]} */
function diffColumns(/** @type {DiffTable} */ { name: table, keys, columns, rows }) {
  const label = (/** @type {string} */ name) => words(table).columns?.[name] ?? [name.replaceAll("_", " "), ""];
  /** @type {Column[]} */
  const made = table === "sizes"
    ? [{ label: "size", title: "Bytes of a chunk, with its header", by: (row) => row.key[1], cell: (row) => sizeName(row.key[0], row.key[1]) }]
    : keys.map((name, i) => ({ label: label(name)[0], title: label(name)[1], by: (row) => keyText(table, name, row.key[i]), cell: (row) => keyText(table, name, row.key[i]) }));
  for (const name of ordered(table, columns)) {
    const i = columns.indexOf(name);
    const show = isBytes(table, name) ? bytes : number;
    const side = (/** @type {number[] | null} */ figures) => (figures ? show(figures[i]) : "not listed");
    const grown = (/** @type {DiffRow} */ row) => (row.from && row.to ? row.to[i] - row.from[i] : null);
    const most = rows.reduce((most, row) => Math.max(most, Math.abs(grown(row) ?? 0)), 0);
    const text = (/** @type {number} */ by) => (isBytes(table, name) ? signed(by) : by > 0 ? `+${number(by)}` : number(by).replace("-", "−"));
    made.push({
      label: label(name)[0], title: `Change of: ${label(name)[1] || label(name)[0]}`, numeric: true,
      by: (row) => Math.abs(grown(row) ?? 0),
      cell: (row) => {
        const by = grown(row);
        return by === null ? `${side(row.from)} → ${side(row.to)}` : bar(text(by), by, most, by < 0 ? "less" : "more");
      },
      tip: (row) => `${side(row.from)} → ${side(row.to)}`,
    });
  }
  return made;
}

/** A root, and what it leads to. */
function retainer(/** @type {Row} */ root) {
  const name = rootName(root.kind, root.root);
  return h("div", { class: "root", title: name }, name, h("span", { class: "faint" }, ` ${bytes(root.bytes)} in ${number(root.count)}`));
}

/** A table that is sorted by its headings, and shows its first rows until all are asked for. */
class Sorted {
  constructor(/** @type {Column[]} */ columns, /** @type {any[]} */ rows, /** @type {number} */ at) {
    this.columns = columns;
    this.rows = rows;
    this.at = at;
    this.down = Boolean(columns[at]?.numeric);
    this.all = false;
    this.body = h("tbody");
    this.head = h("tr");
    this.more = h("button", { class: "small more", onclick: () => this.open() }, "");
    this.element = h("div", {}, h("table", { class: "plain sorted" }, h("thead", {}, this.head), this.body), this.more);
    this.show();
  }

  open() {
    this.all = !this.all;
    this.show();
  }

  sort(/** @type {number} */ at) {
    this.down = at === this.at ? !this.down : Boolean(this.columns[at].numeric);
    this.at = at;
    this.show();
    this.head.children[at].querySelector("button")?.focus();
  }

  show() {
    const by = this.columns[this.at].by;
    const order = (/** @type {any} */ a, /** @type {any} */ b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0);
    const sorted = this.rows.slice().sort(this.down ? (a, b) => order(b, a) : order);
    const shown = this.all ? sorted : sorted.slice(0, FEW);
    fill(this.head, ...this.columns.map((column, i) => {
      const mark = i !== this.at ? "" : this.down ? " ▾" : " ▴";
      const ordered = i !== this.at ? "none" : this.down ? "descending" : "ascending";
      return h("th", { scope: "col", class: column.numeric ? "num" : "", "aria-sort": ordered },
        h("button", { class: "sort", title: column.title || null, onclick: () => this.sort(i) }, column.label, h("span", { "aria-hidden": "true" }, mark)));
    }));
    fill(this.body, ...shown.map((row) => h("tr", {}, ...this.columns.map((column) => h("td", { class: column.numeric ? "num" : "", title: column.tip?.(row) ?? null }, column.cell(row))))));
    this.more.hidden = this.rows.length <= FEW;
    this.more.textContent = this.all ? "show fewer" : `show all ${number(this.rows.length)}`;
  }
}

/** A card with a heading. */
export function card(/** @type {string} */ name, /** @type {string} */ title, /** @type {string} */ about, /** @type {any[]} */ ...content) {
  return h("section", { class: "card", "data-table": name, "aria-label": title, tabIndex: 0 }, h("h2", {}, title), about && h("p", { class: "faint" }, about), ...content);
}

/** The tables of a snapshot: lists of objects in it, and in its parts. @returns {[string, Row[]][]} */
function lists(/** @type {Record<string, any>} */ heap, prefix = "") {
  return Object.entries(heap).flatMap(([name, value]) => {
    if (Array.isArray(value)) return value.length && typeof value[0] === "object" && value[0] ? [/** @type {[string, Row[]]} */ ([prefix + name, value])] : [];
    return value && typeof value === "object" && !prefix ? lists(value, `${name}.`) : [];
  });
}

/** The largest chunks with their roots, which are a list of their own. */
function withRoots(/** @type {Row[]} */ largest, /** @type {Record<string, any>} */ heap) {
  const roots = new Map(heap.retained?.largest.map((/** @type {Row} */ { address, kind, root }) => [address, rootName(kind, root)]));
  return roots.size ? largest.map((row) => ({ ...row, root: roots.get(row.address) ?? null })) : largest;
}

/** A card for each table of a snapshot. */
export function tableCards(/** @type {Record<string, any>} */ heap) {
  const found = lists(heap).filter(([name]) => name !== "retained.largest");
  found.sort(([a], [b]) => place(a) - place(b));
  return found.map(([name, rows]) => {
    const { title, about, first, more, left } = words(name);
    const shown = name === "rows" ? rows.filter((row) => row.bytes > 0) : name === "largest" ? withRoots(rows, heap) : rows;
    if (!shown.length) return null;
    const made = columns(name, shown);
    const label = first && words(name).columns?.[first]?.[0];
    const at = made.findIndex((column) => (label ? column.label === label : column.numeric && /bytes|resident|count/.test(column.label)));
    const rest = left?.(heap) ?? 0;
    return card(name, title, `${about} ${more?.(heap) ?? ""}`.trim(), new Sorted(made, shown, Math.max(0, at)).element, rest > 0 ? h("p", { class: "faint" }, `${number(rest)} more are not listed.`) : null);
  });
}

/** A card for each table of a difference. */
export function diffCards(/** @type {DiffTable[]} */ tables) {
  return tables.slice().sort((a, b) => place(a.name) - place(b.name)).map((table) => {
    const changed = table.rows.filter(({ from, to }) => !from || !to || from.some((figure, i) => figure !== to[i]));
    const { title, about, first } = words(table.name);
    const framed = (/** @type {any} */ content) => card(table.name, `${title}: change`, about, content);
    if (!changed.length) return framed(h("p", {}, "Nothing changed."));
    const made = diffColumns({ ...table, rows: changed });
    const label = first && words(table.name).columns?.[first]?.[0];
    const at = made.findIndex((column) => (label ? column.label === label : column.numeric));
    return framed(new Sorted(made, changed, Math.max(0, at)).element);
  });
}

/** A card with the number of pages by how much of them is live, before and after if there are two. */
export function occupancyCard(/** @type {number[][]} */ sides) {
  const name = (/** @type {number} */ tenth) => (tenth === 0 ? "nothing" : tenth === 1 ? "up to 10 %" : `${10 * tenth - 10} to ${10 * tenth} %`);
  const most = Math.max(1, ...sides.flat());
  const about = "The heap’s resident pages, by how much of them is in use. A page stays in memory as long as a byte of it is in use.";
  const head = ["in use", ...(sides.length > 1 ? ["pages before", "pages after"] : ["pages"])];
  const rows = sides[0].map((_, tenth) => h("tr", {}, h("th", { scope: "row" }, name(tenth)), ...sides.map((pages) => h("td", { class: "num" }, bar(number(pages[tenth]), pages[tenth], most)))));
  return card("occupancy", "Pages by how much of them is in use", about, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ...head.map((text, i) => h("th", { scope: "col", class: i ? "num" : "" }, text)))), h("tbody", {}, ...rows)));
}
