// The address space: each mapping with its resident bytes, and how many of them have a stack.

import { api } from "../api.js";
import { bytes, exact, number } from "../format.js";
import { bar } from "../table.js";
import { List } from "./list.js";

/** @typedef {import("../api.js").Mapping} Mapping */

/** Bytes of a mapping in RAM. */
function resident(/** @type {Mapping} */ row) {
  return row.bytes.anon + row.bytes.shmem + row.bytes.file + row.bytes.hugetlb;
}

export class Space {
  constructor() {
    this.largest = 0;
    const amount = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ title, /** @type {(row: Mapping) => number} */ of) => ({
      name,
      label,
      title,
      numeric: true,
      by: of,
      cell: (/** @type {Mapping} */ row) => (name === "resident" ? bar(bytes(of(row)), of(row), this.largest) : of(row) ? bytes(of(row)) : "–"),
      tip: (/** @type {Mapping} */ row) => exact(of(row)),
    });
    this.list = new List({
      label: "Mappings of the address space",
      columns: [
        { name: "address", label: "Address", title: "First and last address, hexadecimal", by: (/** @type {Mapping} */ row) => row.start.padStart(16, "0"), cell: (/** @type {Mapping} */ row) => row.start, tip: (/** @type {Mapping} */ row) => `${row.start}-${row.end}` },
        { name: "permissions", label: "Permissions", by: (/** @type {Mapping} */ row) => row.permissions, cell: (/** @type {Mapping} */ row) => row.permissions, tip: () => "r read, w write, x execute, s shared, p private" },
        amount("resident", "Resident", "Bytes in RAM: anonymous, shared and file pages", resident),
        amount("size", "Size", "Bytes of the mapping, resident or not", (row) => row.size),
        amount("attributed", "With stack", "Anonymous and shared bytes in RAM that have a call stack. Mapped files and swap are in no total, and not counted here", (row) => row.attributed),
        amount("not_observed", "No stack", "Anonymous and shared bytes in RAM without a call stack, as at the top of the page: resident before memprof attached, or brought in without an event that memprof observes", (row) => row.not_observed),
        amount("swap", "Swapped", "Bytes written out to swap", (row) => row.bytes.swap),
        amount("huge", "Huge", "Bytes in huge pages", (row) => row.huge),
        { name: "name", label: "Name", wide: true, by: (/** @type {Mapping} */ row) => row.name, cell: (/** @type {Mapping} */ row) => row.name || "[anon]" },
      ],
      sort: "-resident",
      key: (row) => `${row.pid} ${row.start}`,
      text: (row) => `${row.name} ${row.permissions} ${row.start}`,
      empty: "The target has no address space any more.",
    });
    this.element = this.list.element;
    /** @type {Mapping[]} */
    this.rows = [];
  }

  async refresh() {
    const { report, rows } = await api.maps();
    this.rows = rows;
    this.show();
    return report;
  }

  show() {
    this.largest = Math.max(0, ...this.rows.map(resident));
    this.list.fill(this.rows, (shown) => {
      const sum = (/** @type {(row: Mapping) => number} */ of) => shown.reduce((total, row) => total + of(row), 0);
      return `${number(shown.length)} mappings: ${bytes(sum((row) => row.size))} of addresses, ${bytes(sum(resident))} in RAM; of anonymous and shared memory ${bytes(sum((row) => row.attributed))} with a call stack, ${bytes(sum((row) => row.not_observed))} without a stack.`;
    }, resident);
  }
}
