// The map of the heap by address: memory in use, free memory, and memory that is not resident.

import { h } from "../dom.js";
import { bytes, percent } from "../format.js";

/** [bytes, live, free, the allocator's own]; the rest is not resident. @typedef {[number, number, number, number]} Cell */
/** @typedef {{ cell: number, ranges: { start: number, cells: Cell[] }[] }} AddressMap */

/** The parts of a cell, from the bottom up: [name, colour, bytes of a cell]. */
const PARTS = /** @type {[string, string, (cell: Cell) => number][]} */ ([
  ["in use", "var(--anon)", ([, live]) => live],
  ["allocator’s own", "var(--faint)", ([, , , own]) => own],
  ["free", "var(--cache)", ([, , free]) => free],
  ["not resident", "var(--line)", ([all, live, free, own]) => all - live - free - own],
]);

/** A cell's square, filled to the share of the heap. */
function square(/** @type {Cell} */ cell, /** @type {number} */ start, /** @type {number} */ size) {
  let from = 0;
  const stops = [];
  for (const [, colour, bytesOf] of PARTS) {
    const to = from + (100 * bytesOf(cell)) / size;
    if (to > from) stops.push(`${colour} ${from.toFixed(1)}% ${to.toFixed(1)}%`);
    from = to;
  }
  stops.push(`transparent ${from.toFixed(1)}%`);
  const parts = PARTS.map(([name, , bytesOf]) => [name, bytesOf(cell)]).filter(([, part]) => Number(part) > 0);
  const title = `0x${start.toString(16)}: ${parts.map(([name, part]) => `${bytes(Number(part))} ${name}`).join(", ")}`;
  const element = h("i", { title });
  element.style.backgroundImage = `linear-gradient(to top, ${stops.join(", ")})`;
  return element;
}

/** The description and the map, or `null` without a heap. */
export function addressMap(/** @type {AddressMap | undefined} */ map) {
  const ranges = map?.ranges ?? [];
  if (!map || ranges.length === 0) return null;
  const sums = PARTS.map(([name, colour, bytesOf]) => ({ name, colour, sum: ranges.reduce((sum, { cells }) => cells.reduce((sum, cell) => sum + bytesOf(cell), sum), 0) }));
  const all = sums.reduce((whole, { sum }) => whole + sum, 0);
  const legend = sums.map(({ name, colour, sum }) => {
    const box = h("i", {});
    box.style.background = colour;
    return h("span", { "data-bytes": sum }, box, `${name} ${bytes(sum)} (${percent(sum, all)})`);
  });
  const parts = ranges.map(({ start, cells }) => h("span", { class: "range" }, ...cells.map((cell, at) => square(cell, start + at * map.cell, map.cell))));
  return {
    about: `Each square is ${bytes(map.cell)} of address space, in address order. A gap is address space without a heap. The filled part of a square belongs to the heap. Partly free squares between squares in use show fragmentation.`,
    content: h("div", { class: "address-map" }, h("div", { class: "legend" }, ...legend), h("div", { class: "squares", role: "img", "aria-label": `The heap by address: ${sums.map(({ name, sum }) => `${name} ${bytes(sum)}`).join(", ")}` }, ...parts)),
  };
}
