// The heap by address: where it is in use, free, or not in memory.

import { h } from "../dom.js";
import { bytes, percent } from "../format.js";

/** [bytes, live, free, the allocator's own]; the rest is not in memory. @typedef {[number, number, number, number]} Cell */
/** @typedef {{ cell: number, ranges: { start: number, cells: Cell[] }[] }} AddressMap */

/** What a cell's colours mean, from its bottom up: [name, colour, bytes of a cell]. */
const PARTS = /** @type {[string, string, (cell: Cell) => number][]} */ ([
  ["in use", "var(--anon)", ([, live]) => live],
  ["allocator’s own", "var(--faint)", ([, , , own]) => own],
  ["free", "var(--cache)", ([, , free]) => free],
  ["not in memory", "var(--line)", ([all, live, free, own]) => all - live - free - own],
]);

/** A cell, as full as the heap fills it. */
function square(/** @type {Cell} */ cell, /** @type {number} */ start, /** @type {number} */ size) {
  let from = 0;
  const stops = [];
  for (const [, colour, of] of PARTS) {
    const to = from + (100 * of(cell)) / size;
    if (to > from) stops.push(`${colour} ${from.toFixed(1)}% ${to.toFixed(1)}%`);
    from = to;
  }
  stops.push(`transparent ${from.toFixed(1)}%`);
  const parts = PARTS.map(([name, , of]) => [name, of(cell)]).filter(([, part]) => Number(part) > 0);
  const title = `0x${start.toString(16)}: ${parts.map(([name, part]) => `${bytes(Number(part))} ${name}`).join(", ")}`;
  const element = h("i", { title });
  element.style.backgroundImage = `linear-gradient(to top, ${stops.join(", ")})`;
  return element;
}

/** The card's text and picture, `null` if there is no heap. */
export function addressMap(/** @type {AddressMap | undefined} */ map) {
  const ranges = map?.ranges ?? [];
  if (!map || ranges.length === 0) return null;
  const sums = PARTS.map(([name, colour, of]) => ({ name, colour, sum: ranges.reduce((sum, { cells }) => cells.reduce((sum, cell) => sum + of(cell), sum), 0) }));
  const all = sums.reduce((whole, { sum }) => whole + sum, 0);
  const legend = sums.map(({ name, colour, sum }) => {
    const box = h("i", {});
    box.style.background = colour;
    return h("span", { "data-bytes": sum }, box, `${name} ${bytes(sum)} (${percent(sum, all)})`);
  });
  const parts = ranges.map(({ start, cells }) => h("span", { class: "range" }, ...cells.map((cell, at) => square(cell, start + at * map.cell, map.cell))));
  return {
    about: `Each square is ${bytes(map.cell)} of address space, in address order; a gap is address space without a heap. It is filled as far as the heap reaches: squares that are free in part, between such that are in use, are fragmentation.`,
    content: h("div", { class: "address-map" }, h("div", { class: "legend" }, ...legend), h("div", { class: "squares", role: "img", "aria-label": `The heap by address: ${sums.map(({ name, sum }) => `${name} ${bytes(sum)}`).join(", ")}` }, ...parts)),
  };
}
