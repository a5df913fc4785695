// The tables of a heap snapshot and of the difference between two snapshots. A table without texts in glossary.js is shown with
// the names of the API.

import { card, h, replace } from "../dom.js";
import { bytes, exact, number, percent, signed } from "../format.js";
import { compare, directed } from "../sort.js";
import { bar, directionOf, sortButton } from "../table.js";
import { columnText, rootName, tableRank, tableText } from "./glossary.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{ key: any[], from: number[] | null, to: number[] | null }} DiffRow */
/** @typedef {{ name: string, keys: string[], columns: string[], rows: DiffRow[] }} DiffTable */
/**
 * A column of a table.
 * @typedef {object} Column
 * @property {string} label
 * @property {string} [title] the explanation
 * @property {boolean} [numeric]
 * @property {(row: any) => any} cell
 * @property {(row: any) => number | string} by the sort key
 * @property {(row: any) => string} [tip]
 */

/** Maximum number of rows until the user shows all. */
const FEW_ROWS = 7;
/** Maximum number of roots beside a type. */
const FEW_ROOTS = 2;

/** Names of columns of bytes. */
const BYTES = /(^|_)(bytes|resident|pinned|own|size|anonymous|zero|huge)$|^pinned_beside_samples$/;
/** Names of columns of stacks, in the tables of the heap by stack. */
const STACKS = /^(stack|head|grown_by)$/;
/** Names of further columns of bytes, in the tables of the heap by stack. */
const BYTES_OF_STACKS = /^(live|overhead|unreachable|requested)$/;
/** Names of columns of addresses. */
const ADDRESSES = /(^|_)(address|example)$/;

function isBytes(/** @type {string} */ table, /** @type {string} */ column) {
  return (table === "arenas" && column !== "chunks") || (table.startsWith("by_stack.") && BYTES_OF_STACKS.test(column)) || BYTES.test(column);
}

/** A size class: `17 to 32`, or its only size. */
export function sizeName(/** @type {number} */ from, /** @type {number} */ to) {
  return to - from < 16 ? number(to) : `${number(from)} to ${number(to)}`;
}

/** The frames that the text of a stack has at most: the innermost ones, and the outermost one. */
const MAX_FRAMES = 8;

/** The frames of a stack, innermost first, as text: `malloc ← parse ← main`. */
function stackText(/** @type {string[]} */ frames) {
  const left = frames.length - MAX_FRAMES;
  const shown = left < 2 ? frames : [...frames.slice(0, MAX_FRAMES - 1), `… ${number(left)} more`, frames[frames.length - 1]];
  return shown.join(" ← ");
}

/** The label of a value in a column of text. */
function keyText(/** @type {string} */ table, /** @type {string} */ column, /** @type {any} */ value) {
  if (/^(grown|zero)_by\.rows$/.test(table) || (table.startsWith("by_stack.") && STACKS.test(column) && value)) return stackText(value.split(";").reverse());
  const known = tableText(table).values?.[column] ?? {};
  return Object.hasOwn(known, value) ? known[value] : String(value ?? "–");
}

/** The columns in display order: first those that glossary.js names. */
function ordered(/** @type {string} */ table, /** @type {string[]} */ columns) {
  const known = Object.keys(tableText(table).columns ?? {}).filter((name) => columns.includes(name));
  return [...known, ...columns.filter((name) => !known.includes(name))];
}

/** The column of a size class, in the table `sizes`. @returns {Column} */
function sizeColumn(/** @type {(row: any) => number[]} */ range) {
  return { label: "size", title: "Bytes of a chunk, with its header", by: (row) => range(row)[1], cell: (row) => sizeName(range(row)[0], range(row)[1]) };
}

/** The columns of a table, from its first row. @returns {Column[]} */
function columns(/** @type {string} */ table, /** @type {Row[]} */ rows) {
  const all = Object.keys(rows[0]).filter((name) => ["string", "number", "boolean"].includes(typeof rows[0][name]) || rows[0][name] === null || ["retained_by", "held_by", "parts"].includes(name)).filter((name) => !name.endsWith("_error"));
  const isSize = table === "sizes";
  const own = all.filter((name) => (isSize ? !["from", "to"].includes(name) : table !== "arenas" || name !== "kind"));
  const others = ordered(table, own).map((name) => column(table, name, rows));
  return isSize ? [sizeColumn((row) => [row.from, row.to]), ...others] : others;
}

/** @returns {Column} */
function column(/** @type {string} */ table, /** @type {string} */ name, /** @type {Row[]} */ rows) {
  const [label, title] = columnText(table, name);
  const by = (/** @type {Row} */ row) => row[name] ?? 0;
  if (name === "retained_by") return { label, title, by: (row) => row.retained_by.length, cell: (row) => h("div", {}, ...row.retained_by.slice(0, FEW_ROOTS).map(retainer)) };
  if (name === "held_by") return { label, title, by: (row) => row.held_by[0]?.bytes ?? 0, cell: (row) => row.held_by.slice(0, FEW_ROOTS).map((/** @type {Row} */ by) => `${by.type} ${percent(by.bytes, row.bytes)}`).join(", ") };
  if (name === "parts") return { label, title, by: (row) => row.parts.length, cell: (row) => shapeText(row) };
  if (ADDRESSES.test(name)) return { label, title, numeric: true, by, cell: (row) => (typeof row[name] === "number" ? `0x${row[name].toString(16)}` : String(row[name] ?? "–")) };
  if (rows.some((row) => typeof row[name] === "number")) {
    const show = isBytes(table, name) ? bytes : number;
    const error = (/** @type {Row} */ row) => row[`${name}_error`];
    const text = (/** @type {Row} */ row) => (error(row) ? `${show(row[name])} ± ${show(error(row))}` : show(row[name]));
    if (show === number) return { label, title, numeric: true, by, cell: text };
    const largest = rows.reduce((largest, row) => Math.max(largest, row[name] ?? 0), 0);
    return { label, title, numeric: true, by, cell: (row) => bar(text(row), row[name], largest), tip: (row) => exact(row[name]) };
  }
  return { label, title, by: (row) => keyText(table, name, row[name]), cell: (row) => keyText(table, name, row[name]) };
}

/** The columns of a table of differences. @returns {Column[]} */
function diffColumns(/** @type {DiffTable} */ { name: table, keys, columns, rows }) {
  /** @type {Column[]} */
  const found = table === "sizes" ? [sizeColumn((row) => row.key)] : keys.map((name, i) => {
    const [label, title] = columnText(table, name);
    return { label, title, by: (row) => keyText(table, name, row.key[i]), cell: (row) => keyText(table, name, row.key[i]) };
  });
  for (const name of ordered(table, columns)) {
    const i = columns.indexOf(name);
    const [label, title] = columnText(table, name);
    const unit = isBytes(table, name) ? "bytes" : "objects";
    const show = unit === "bytes" ? bytes : number;
    const side = (/** @type {number[] | null} */ figures) => (figures ? show(figures[i]) : "not listed");
    const grown = (/** @type {DiffRow} */ row) => (row.from && row.to ? row.to[i] - row.from[i] : null);
    const largest = rows.reduce((largest, row) => Math.max(largest, Math.abs(grown(row) ?? 0)), 0);
    found.push({
      label, title: `Change of: ${title || label}`, numeric: true,
      by: (row) => Math.abs(grown(row) ?? 0),
      cell: (row) => {
        const by = grown(row);
        return by === null ? `${side(row.from)} → ${side(row.to)}` : bar(signed(by, 0, unit), by, largest, by < 0 ? "less" : "more");
      },
      tip: (row) => `${side(row.from)} → ${side(row.to)}`,
    });
  }
  return found;
}

/** The shape of lost blocks: `40 B + 101 B text`. */
function shapeText(/** @type {Row} */ { parts, groups, chunks }) {
  const described = parts.map((/** @type {Row} */ part) => `${bytes(part.bytes)} ${part.kind === "unknown" ? "" : part.name || keyText("types.rows", "kind", part.kind)}`.trim());
  const more = groups ? Math.round(chunks / groups) - parts.length : 0;
  return [...described, ...(more > 0 ? [`${number(more)} more`] : [])].join(" + ") || "others";
}

/** A root, with the bytes and the number of objects that it leads to. */
function retainer(/** @type {Row} */ root) {
  const name = rootName(root.kind, root.root);
  return h("div", { class: "root", title: name }, name, h("span", { class: "faint" }, ` ${bytes(root.bytes)} in ${number(root.count)}`));
}

/** A table that its headings sort. It shows the first rows until the user shows all. */
class SortedTable {
  /** @param {number} sortedBy index of the column of the initial order */
  constructor(/** @type {Column[]} */ columns, /** @type {any[]} */ rows, sortedBy) {
    this.columns = columns;
    this.rows = rows;
    this.sortedBy = sortedBy;
    this.descending = Boolean(columns[sortedBy]?.numeric);
    this.showsAll = false;
    this.body = h("tbody");
    this.head = h("tr");
    this.more = h("button", { class: "small more", onclick: () => this.toggleAll() }, "");
    this.element = h("div", {}, h("table", { class: "plain sorted" }, h("thead", {}, this.head), this.body), this.more);
    this.show();
  }

  toggleAll() {
    this.showsAll = !this.showsAll;
    this.show();
  }

  sort(/** @type {number} */ column) {
    this.descending = column === this.sortedBy ? !this.descending : Boolean(this.columns[column].numeric);
    this.sortedBy = column;
    this.show();
    this.head.children[column].querySelector("button")?.focus();
  }

  show() {
    const by = this.columns[this.sortedBy].by;
    const sorted = this.rows.slice().sort(directed((a, b) => compare(by(a), by(b)), this.descending));
    const shown = this.showsAll ? sorted : sorted.slice(0, FEW_ROWS);
    replace(this.head, ...this.columns.map((column, i) => {
      const direction = directionOf(i === this.sortedBy, this.descending);
      return h("th", { scope: "col", class: column.numeric ? "num" : "", "aria-sort": direction }, sortButton(column, direction, () => this.sort(i)));
    }));
    replace(this.body, ...shown.map((row) => h("tr", {}, ...this.columns.map((column) => h("td", { class: column.numeric ? "num" : "", title: column.tip?.(row) ?? null }, column.cell(row))))));
    this.more.hidden = this.rows.length <= FEW_ROWS;
    this.more.textContent = this.showsAll ? "show fewer" : `show all ${number(this.rows.length)}`;
  }
}

/** A card with a table or a picture. The keyboard can scroll it. */
export function heapCard(/** @type {string} */ name, /** @type {string} */ title, /** @type {string} */ about, /** @type {any[]} */ ...content) {
  return card(title, about, content, { "data-table": name, "aria-label": title, tabIndex: 0 });
}

/** A sorted table; `preferred` is the column of the initial order if no text names one. */
function sortedTable(/** @type {string} */ table, /** @type {Column[]} */ columns, /** @type {any[]} */ rows, /** @type {(column: Column) => boolean} */ preferred) {
  const { sortedBy, columns: texts } = tableText(table);
  const label = sortedBy && texts?.[sortedBy]?.[0];
  const index = columns.findIndex(label ? (column) => column.label === label : preferred);
  return new SortedTable(columns, rows, Math.max(0, index)).element;
}

/** The tables of a snapshot: its lists of objects, and those of its members. @returns {[string, Row[]][]} */
function lists(/** @type {Record<string, any>} */ heap, prefix = "") {
  return Object.entries(heap).flatMap(([name, value]) => {
    if (Array.isArray(value)) return value.length && typeof value[0] === "object" && value[0] ? [/** @type {[string, Row[]]} */ ([prefix + name, value])] : [];
    return value && typeof value === "object" && !prefix ? lists(value, `${name}.`) : [];
  });
}

/** The largest chunks with their roots, which are in another list. */
function withRoots(/** @type {Row[]} */ largest, /** @type {Record<string, any>} */ heap) {
  const roots = new Map(heap.retained?.largest.map((/** @type {Row} */ { address, kind, root }) => [address, rootName(kind, root)]));
  return roots.size ? largest.map((row) => ({ ...row, root: roots.get(row.address) ?? null })) : largest;
}

/** The tables that answer most, in this order. */
const FIRST = ["python.types", "types.rows", "by_stack.rows", "unreachable.shapes", "by_stack.leaks", "occupancy", "rows", "sizes", "seen"];
/** Whether Python's types are known: they say more than those of the heap's chunks. */
const hasPython = (/** @type {Element[]} */ cards) => cards.some((card) => card.matches("[data-table='python.types']"));

/** Divides cards: those that answer most, in order, and the details. Tables without texts here are shown: their program is special. */
export function divided(/** @type {(HTMLElement | null | false)[]} */ cards) {
  const all = /** @type {HTMLElement[]} */ (cards.filter(Boolean));
  const rank = (/** @type {HTMLElement} */ card) => FIRST.indexOf(card.dataset.table ?? "");
  const isFirst = (/** @type {HTMLElement} */ card) => !(card.dataset.table === "types.rows" && hasPython(all)) && (rank(card) >= 0 || tableRank(card.dataset.table ?? "") < 0 && card.dataset.table !== "map");
  return { first: all.filter(isFirst).sort((a, b) => rank(a) - rank(b)), details: all.filter((card) => !isFirst(card)) };
}

/** A card for each table of a snapshot. */
export function tableCards(/** @type {Record<string, any>} */ heap) {
  const found = lists(heap).filter(([name]) => name !== "retained.largest");
  found.sort(([a], [b]) => tableRank(a) - tableRank(b));
  return found.map(([name, rows]) => {
    const { title, about, more, leftOut } = tableText(name);
    const shown = name === "rows" ? rows.filter((row) => row.bytes > 0) : name === "largest" ? withRoots(rows, heap) : rows;
    if (!shown.length) return null;
    const table = sortedTable(name, columns(name, shown), shown, (column) => Boolean(column.numeric) && /bytes|resident|count/.test(column.label));
    const rest = leftOut?.(heap) ?? 0;
    return heapCard(name, title, `${about} ${more?.(heap) ?? ""}`.trim(), table, rest > 0 ? h("p", { class: "faint" }, `${number(rest)} more are not listed.`) : null);
  });
}

/** A card for each table of a difference. */
export function diffCards(/** @type {DiffTable[]} */ tables) {
  return tables.slice().sort((a, b) => tableRank(a.name) - tableRank(b.name)).map((table) => {
    const changed = table.rows.filter(({ from, to }) => !from || !to || from.some((figure, i) => figure !== to[i]));
    const { title, about } = tableText(table.name);
    const framed = (/** @type {any} */ content) => heapCard(table.name, `${title}: change`, about, content);
    if (!changed.length) return framed(h("p", {}, "Nothing changed."));
    return framed(sortedTable(table.name, diffColumns({ ...table, rows: changed }), changed, (column) => Boolean(column.numeric)));
  });
}

/** A card with the number of pages by their share in use, of one snapshot or of two. */
export function occupancyCard(/** @type {number[][]} */ sides) {
  const name = (/** @type {number} */ tenth) => (tenth === 0 ? "nothing" : tenth === 1 ? "up to 10 %" : `${10 * tenth - 10} to ${10 * tenth} %`);
  const largest = Math.max(1, ...sides.flat());
  const about = "The heap’s resident pages, by the share that is in use. A page remains in memory while a byte of it is in use.";
  const head = ["in use", ...(sides.length > 1 ? ["pages before", "pages after"] : ["pages"])];
  const rows = sides[0].map((_, tenth) => h("tr", {}, h("th", { scope: "row" }, name(tenth)), ...sides.map((pages) => h("td", { class: "num" }, bar(number(pages[tenth]), pages[tenth], largest)))));
  return heapCard("occupancy", "Pages by share in use", about, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ...head.map((text, i) => h("th", { scope: "col", class: i ? "num" : "" }, text)))), h("tbody", {}, ...rows)));
}
