// The address space: mappings, grouped by purpose or by file, with their resident bytes and how many of these have a stack.

import { api } from "../api.js";
import { display, h, notice, replace, setProperties, setText } from "../dom.js";
import { bytes, exact, number } from "../format.js";
import { mappingPurpose } from "../glossary.js";
import { EMPTY_TITLE } from "../kinds.js";
import { orderOr, sorted } from "../sort.js";
import { change, state } from "../state.js";
import { bar, Table, toggleButton } from "../table.js";
import { matcher } from "../tree/search.js";

/** @typedef {import("../api.js").Mapping} Mapping */
/** @typedef {import("../api.js").MappingSums} MappingSums */
/** @typedef {import("../api.js").Maps} Maps */
/** @typedef {{ size: number, resident: number, attributed: number, not_observed: number, swap: number, huge: number }} Sums */
/**
 * A row: a group of mappings, or one mapping.
 * @typedef {object} Line
 * @property {string} key
 * @property {string} name
 * @property {string} tip
 * @property {Sums} sums
 * @property {Mapping | null} mapping null for a group
 * @property {number} count number of mappings
 * @property {Mapping[]} inside the group's mappings in the reply
 * @property {boolean} below whether the row is below its group
 */

/** Indent of a mapping in a group, in pixels. */
const INDENT = 18;

/** @returns {Sums} */
function sums(/** @type {MappingSums} */ { size, bytes, attributed, not_observed, huge }) {
  return { size, resident: bytes.anon + bytes.shmem + bytes.file + bytes.hugetlb, attributed, not_observed, swap: bytes.swap, huge };
}

/** @returns {Sums} */
function add(/** @type {Sums[]} */ parts) {
  const total = { size: 0, resident: 0, attributed: 0, not_observed: 0, swap: 0, huge: 0 };
  const names = /** @type {(keyof Sums)[]} */ (Object.keys(total));
  for (const part of parts) for (const name of names) total[name] += part[name];
  return total;
}

/** A sum without a part of it. @returns {Sums} */
function subtract(/** @type {Sums} */ whole, /** @type {Sums} */ part) {
  return /** @type {Sums} */ (Object.fromEntries(Object.entries(whole).map(([name, all]) => [name, all - part[/** @type {keyof Sums} */ (name)]])));
}

/** The name of a mapping, or else its purpose. */
function mappingName(/** @type {Mapping} */ row) {
  if (row.runs_as) return `${row.runs_as} (${row.name})`;
  return row.name && row.name !== "[anon]" ? row.name : `[${mappingPurpose(row.category)[0]}]`;
}

/** @returns {Line} */
function line(/** @type {Mapping} */ row, below = false) {
  return { key: `${row.pid} ${row.start}`, name: mappingName(row), tip: `${row.name || "[anon]"}: ${mappingPurpose(row.category)[0]}`, sums: sums(row), mapping: row, count: 1, inside: [], below };
}

export class AddressSpace {
  constructor() {
    this.largest = 0;
    /** Keys of the open groups. @type {Set<string>} */
    this.opened = new Set();
    /** @type {Maps | null} */
    this.reply = null;
    const amount = (/** @type {keyof Sums} */ name, /** @type {string} */ label, /** @type {string} */ title) => ({
      name,
      label,
      title,
      numeric: true,
      by: (/** @type {Line} */ row) => row.sums[name],
      cell: (/** @type {Line} */ row) => (name === "resident" ? bar(bytes(row.sums[name]), row.sums[name], this.largest) : row.sums[name] ? bytes(row.sums[name]) : "–"),
      tip: (/** @type {Line} */ row) => exact(row.sums[name]),
    });
    const start = (/** @type {Line} */ row) => row.mapping?.start ?? row.inside[0]?.start ?? "";
    /** @type {import("../table.js").Column<Line>[]} */
    this.columns = [
      { name: "name", label: "Name", wide: true, indent: (row) => INDENT * (1 + Number(row.below)), by: (row) => row.name, cell: (row) => this.name(row), tip: (row) => row.tip },
      amount("resident", "Resident", "Bytes in RAM: anonymous, shared and file pages"),
      amount("size", "Size", "Bytes of the mappings, resident or not"),
      amount("attributed", "With stack", "Anonymous and shared bytes in RAM that have a call stack. Mapped files and swap are not part of the totals and not counted here"),
      amount("not_observed", "No stack", "Anonymous and shared bytes in RAM without a call stack, as at the top of the page: resident before memprof attached, brought in without an event that memprof observes, or with a lost stack"),
      amount("swap", "Swapped", "Bytes written out to swap"),
      amount("huge", "Huge", "Bytes in huge pages"),
      { name: "permissions", label: "Permissions", rem: 8, by: (row) => row.mapping?.permissions ?? "", cell: (row) => row.mapping?.permissions ?? "", tip: (row) => (row.mapping ? "r read, w write, x execute, s shared, p private" : "") },
      { name: "address", label: "Addresses", title: "First address, and the first one after the mapping, hexadecimal", rem: 19, by: (row) => start(row).padStart(16, "0"), cell: (row) => (row.mapping ? `${row.mapping.start}–${row.mapping.end}` : "") },
    ];
    this.table = new Table(this.columns, {
      label: "Mappings of the address space. Right arrow opens a group, left arrow closes it.",
      role: "treegrid",
      sort: (sort) => change({ sort }),
      key: (row) => row.key,
      open: (row) => this.setOpen(row, !this.opened.has(row.key)),
      keydown: (event, index) => this.handleKey(event, index),
      row: (element, row) => {
        element.setAttribute("aria-level", row.below ? "2" : "1");
        if (!row.mapping) element.setAttribute("aria-expanded", String(this.opened.has(row.key)));
      },
    });
    this.note = h("p", { class: "note" });
    this.stage = h("div", { class: "stage" }, this.table.element);
    this.element = h("div", { class: "graph" }, this.note, this.stage);
  }

  async refresh() {
    this.reply = await api.maps();
    this.show();
    return this.reply.report;
  }

  name(/** @type {Line} */ row) {
    // The click reaches the row, which opens or closes the group.
    const toggle = row.mapping ? "" : toggleButton(this.opened.has(row.key));
    const count = row.mapping ? "" : h("span", { class: "faint" }, ` ${number(row.count)}`);
    const box = h("span", { class: "tree-name" }, toggle, row.name, count);
    if (row.below) box.style.paddingInlineStart = `${2 * INDENT}px`;
    return box;
  }

  /** Opens or closes a group. */
  setOpen(/** @type {Line} */ row, /** @type {boolean} */ open) {
    if (row.mapping || row.inside.length === 0) return;
    if (open) this.opened.add(row.key);
    else this.opened.delete(row.key);
    this.show();
  }

  handleKey(/** @type {KeyboardEvent} */ event, /** @type {number} */ index) {
    const row = this.table.rows[index];
    if (!row || !["ArrowLeft", "ArrowRight"].includes(event.key)) return false;
    if (event.key === "ArrowRight") this.setOpen(row, true);
    else if (row.below) this.table.select(this.table.rows.findLastIndex((above, i) => i < index && !above.mapping));
    else this.setOpen(row, false);
    return true;
  }

  /** The groups of these mappings; with `all`, including mappings that the reply leaves out. @returns {Line[]} */
  groups(/** @type {Mapping[]} */ shown, /** @type {boolean} */ all) {
    const { categories, count } = /** @type {Maps} */ (this.reply);
    const byPurpose = state.group === "purpose";
    /** @type {Map<string, Mapping[]>} */
    const found = new Map();
    for (const row of shown) {
      const key = byPurpose ? row.category : mappingName(row);
      const rows = found.get(key);
      if (rows) rows.push(row);
      else found.set(key, [row]);
    }
    const group = (/** @type {string} */ key, /** @type {Mapping[]} */ inside, count = inside.length, sum = add(inside.map(sums))) => {
      const [name, about] = byPurpose ? mappingPurpose(key) : [key, key];
      return { key: `${state.group} ${key}`, name, tip: about, sums: sum, mapping: null, count, inside, below: false };
    };
    if (all && byPurpose) return categories.map((row) => group(row.category, found.get(row.category) ?? [], row.mappings, sums(row)));
    const groups = [...found].map(([key, inside]) => group(key, inside));
    if (!all || count === shown.length) return groups;
    const rest = subtract(sums(/** @type {Maps} */ (this.reply)), add(groups.map((row) => row.sums)));
    return [...groups, group("[mappings that are not listed]", [], count - shown.length, rest)];
  }

  show() {
    if (!this.reply) return;
    const { rows, count, report } = this.reply;
    const matches = matcher(state.q);
    const shown = matches ? rows.filter((row) => matches(`${mappingName(row)} ${row.permissions} ${row.start} ${mappingPurpose(row.category)[0]}`)) : rows;
    const order = orderOr(this.columns, state.sort, "-resident");
    const inOrder = (/** @type {Line[]} */ lines) => sorted(lines, this.columns, order);
    const top = state.group === "none" ? shown.map((row) => line(row)) : this.groups(shown, !matches);
    const below = (/** @type {Line} */ row) => (this.opened.has(row.key) ? inOrder(row.inside.map((inside) => line(inside, true))) : []);
    const lines = inOrder(top).flatMap((row) => [row, ...below(row)]);
    const total = matches ? add(shown.map(sums)) : sums(this.reply);
    const mappings = matches ? shown.length : count;
    const cache = report.not_observed.cache ? ` ${bytes(report.not_observed.cache)} of page cache without a stack belong to no mapping.` : "";
    setText(this.note, `${number(mappings)} mappings: ${bytes(total.size)} of addresses, ${bytes(total.resident)} in RAM. Anonymous and shared memory: ${bytes(total.attributed)} with a call stack, ${bytes(total.not_observed)} without a stack.${cache}`);
    setProperties(this.note, { "data-total": total.resident, "data-count": mappings });
    this.largest = Math.max(0, ...top.map((row) => row.sums.resident));
    if (lines.length === 0) replace(this.stage, notice(EMPTY_TITLE, state.q ? "No mapping matches the search." : "The target has no address space any more."));
    else display(this.stage, this.table.element);
    this.table.show(lines, order);
  }
}
