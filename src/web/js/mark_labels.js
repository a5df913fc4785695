// The names of marks on the timeline, beside the marks' lines: they do not overlap, and end within the plot.

import { fill, h } from "./dom.js";

/** @typedef {import("./api.js").Mark} Mark */
/** @typedef {{ left: number, width: number, line: number }} Place pixels, and the line of text from the top */

/** Distance of a name from its mark's line, and of names from each other, in pixels. */
const GAP = 4;

/**
 * Places names of the given widths at their marks, which are in order: right of the mark or, at the end, left of it;
 * in the first of `lines` lines that has room. A name without room anywhere is left out.
 * @param {{ x: number, width: number }[]} names
 * @returns {(Place | null)[]}
 */
export function place(names, /** @type {number} */ whole, /** @type {number} */ lines) {
  const placed = /** @type {Place[]} */ ([]);
  return names.map(({ x, width: full }) => {
    const width = Math.min(full, whole);
    const right = x + GAP + width <= whole ? x + GAP : Math.max(0, x - GAP - width);
    for (let line = 0; line < lines; line++) {
      const free = placed.every((other) => other.line !== line || right >= other.left + other.width + GAP || right + width + GAP <= other.left);
      if (!free) continue;
      const found = { left: right, width, line };
      placed.push(found);
      return found;
    }
    return null;
  });
}

export class MarkNames {
  constructor() {
    this.element = h("div", { class: "mark-names" });
    this.signature = "";
  }

  /** Shows the names of marks at these pixels of a plot. */
  show(/** @type {{ mark: Mark, x: number }[]} */ marks, /** @type {number} */ width, /** @type {number} */ height) {
    const signature = JSON.stringify([marks.map(({ mark, x }) => [mark.id, mark.name, Math.round(x)]), width, height]);
    // The plot is drawn at each move of the pointer.
    if (signature === this.signature) return;
    this.signature = signature;
    const sorted = marks.slice().sort((a, b) => a.x - b.x);
    const texts = sorted.map(({ mark }) => h("span", { class: mark.oom_kill ? "killed" : null }, mark.name ?? mark.id));
    fill(this.element, ...texts);
    const high = texts[0]?.offsetHeight || 1;
    const places = place(sorted.map(({ x }, i) => ({ x, width: texts[i].offsetWidth })), width, Math.max(1, Math.floor(height / high)));
    places.forEach((found, i) => {
      if (!found) return texts[i].remove();
      texts[i].style.left = `${found.left}px`;
      texts[i].style.top = `${found.line * high}px`;
    });
  }
}
