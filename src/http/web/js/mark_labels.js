// The names of marks on the timeline, in a line above the plot, so that they do not cover the curve. Names do not overlap; where
// there is no room, those of killed processes are shown, then the newest, and the timeline names each mark at the cursor.

import { h, replace } from "./dom.js";

/** @typedef {import("./api.js").Mark} Mark */
/** @typedef {{ left: number, width: number }} LabelPosition in pixels */

/** Distance of a name from its mark's line, and between names, in pixels. */
const GAP = 4;

/**
 * Positions names of the given widths at their marks, the first one first: right of the mark or, at the end of the plot, left
 * of it. The result is null for a name without enough free space.
 * @param {{ x: number, width: number }[]} names
 * @returns {(LabelPosition | null)[]}
 */
function layOut(names, /** @type {number} */ plotWidth) {
  const placed = /** @type {LabelPosition[]} */ ([]);
  return names.map(({ x, width: full }) => {
    const width = Math.min(full, plotWidth);
    const left = x + GAP + width <= plotWidth ? x + GAP : Math.max(0, x - GAP - width);
    const isFree = placed.every((other) => left >= other.left + other.width + GAP || left + width + GAP <= other.left);
    if (!isFree) return null;
    const position = { left, width };
    placed.push(position);
    return position;
  });
}

export class MarkLabels {
  constructor() {
    this.element = h("div", { class: "mark-names" });
    this.signature = "";
  }

  /** Shows the names of marks at these pixels of a plot. */
  show(/** @type {{ mark: Mark, x: number }[]} */ marks, /** @type {number} */ width) {
    const signature = JSON.stringify([marks.map(({ mark, x }) => [mark.id, mark.name, Math.round(x)]), width]);
    // uPlot draws at each move of the pointer.
    if (signature === this.signature) return;
    this.signature = signature;
    const isKill = (/** @type {Mark} */ mark) => Number(Boolean(mark.oom_kill));
    const ordered = marks.slice().sort((a, b) => isKill(b.mark) - isKill(a.mark) || b.x - a.x);
    const labels = ordered.map(({ mark }) => h("span", { class: mark.oom_kill ? "killed" : null }, mark.name ?? mark.id));
    replace(this.element, ...labels);
    const positions = layOut(ordered.map(({ x }, i) => ({ x, width: labels[i].offsetWidth })), width);
    positions.forEach((position, i) => {
      if (!position) return labels[i].remove();
      labels[i].style.left = `${position.left}px`;
    });
  }
}
