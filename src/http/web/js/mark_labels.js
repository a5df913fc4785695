// The names of marks on the timeline, beside the marks' lines. Names do not overlap and stay within the plot.

import { h, replace } from "./dom.js";

/** @typedef {import("./api.js").Mark} Mark */
/** @typedef {{ left: number, width: number, line: number }} LabelPosition in pixels; `line` is the line of text, from the top */

/** Distance of a name from its mark's line, and between names, in pixels. */
const GAP = 4;

/**
 * Positions names of the given widths at their marks, which are in order: right of the mark or, at the end of the plot, left
 * of it; on the first of `lines` lines with enough free space. The result is null for a name that fits on no line.
 * @param {{ x: number, width: number }[]} names
 * @returns {(LabelPosition | null)[]}
 */
function layOut(names, /** @type {number} */ plotWidth, /** @type {number} */ lines) {
  const placed = /** @type {LabelPosition[]} */ ([]);
  return names.map(({ x, width: full }) => {
    const width = Math.min(full, plotWidth);
    const left = x + GAP + width <= plotWidth ? x + GAP : Math.max(0, x - GAP - width);
    for (let line = 0; line < lines; line++) {
      const isFree = placed.every((other) => other.line !== line || left >= other.left + other.width + GAP || left + width + GAP <= other.left);
      if (!isFree) continue;
      const position = { left, width, line };
      placed.push(position);
      return position;
    }
    return null;
  });
}

export class MarkLabels {
  constructor() {
    this.element = h("div", { class: "mark-names" });
    this.signature = "";
  }

  /** Shows the names of marks at these pixels of a plot. */
  show(/** @type {{ mark: Mark, x: number }[]} */ marks, /** @type {number} */ width, /** @type {number} */ height) {
    const signature = JSON.stringify([marks.map(({ mark, x }) => [mark.id, mark.name, Math.round(x)]), width, height]);
    // uPlot draws at each move of the pointer.
    if (signature === this.signature) return;
    this.signature = signature;
    const ordered = marks.slice().sort((a, b) => a.x - b.x);
    const labels = ordered.map(({ mark }) => h("span", { class: mark.oom_kill ? "killed" : null }, mark.name ?? mark.id));
    replace(this.element, ...labels);
    const lineHeight = labels[0]?.offsetHeight || 1;
    const positions = layOut(ordered.map(({ x }, i) => ({ x, width: labels[i].offsetWidth })), width, Math.max(1, Math.floor(height / lineHeight)));
    positions.forEach((position, i) => {
      if (!position) return labels[i].remove();
      labels[i].style.left = `${position.left}px`;
      labels[i].style.top = `${position.line * lineHeight}px`;
    });
  }
}
