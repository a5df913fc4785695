// Flame graph and icicle. The element is as high as the graph, so that the window scrolls. The canvas covers the visible part
// and a margin; nodes below a pixel in width are not drawn.

import { isDark } from "../theme.js";
import { TreeCanvas } from "./canvas.js";
import { changeFill, fills, theme } from "./colours.js";
import { drawnName } from "./names.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./canvas.js").Shown} Shown */

const ROW = 20;
/** Margin of the canvas above and below the window, in pixels: short scrolls need no drawing. */
const MARGIN = 400;
const FONT = "12px system-ui, sans-serif";

export class Flame extends TreeCanvas {
  /** @param {import("./canvas.js").Callbacks} callbacks */
  constructor(callbacks) {
    super(callbacks, "flame graph");
    this.element.classList.add("whole");
    this.rows = 0;
    this.queued = false;
    /** Distance of the canvas from the top of the graph, in pixels. */
    this.offset = 0;
    this.onScroll = () => {
      this.ignorePointer();
      if (!this.coversWindow()) this.fit();
    };
  }

  show(/** @type {Shown} */ shown) {
    const before = this.shown;
    const themeChanged = this.theme.dark !== isDark();
    this.shown = shown;
    this.theme = theme();
    if (before?.tree !== shown.tree || themeChanged) this.fills = fills(shown.tree, this.theme.dark);
    const rows = this.rows;
    this.fit();
    if (before && before.upward !== shown.upward) this.reveal(0);
    // Visible frames keep their positions if the graph becomes higher above them.
    else if (before && shown.upward && (before.zoom !== shown.zoom || this.element.getBoundingClientRect().top < 0)) scrollBy(0, (this.rows - rows) * ROW);
  }

  /** The nodes that are drawn: those at least a pixel wide, and the parents of the zoomed one. */
  *drawn() {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    for (const node of [0, ...tree.path(zoom)]) if (node !== zoom) yield node;
    for (let node = zoom; node < tree.end[zoom]; ) {
      // Descendants of a node that is too narrow are also too narrow.
      const isVisible = this.span(node)[1] >= 1;
      if (isVisible) yield node;
      node = isVisible ? node + 1 : tree.end[node];
    }
  }

  /** Number of rows with a frame. */
  countRows() {
    const { tree, selected } = /** @type {Shown} */ (this.shown);
    let deepest = selected < 0 ? 0 : tree.depth[selected];
    for (const node of this.drawn()) deepest = Math.max(deepest, tree.depth[node]);
    return deepest + 1;
  }

  /** Whether the canvas covers the visible part of the graph. */
  coversWindow() {
    const { top } = this.element.getBoundingClientRect();
    return Math.max(0, -top) >= this.offset && Math.min(this.rows * ROW, innerHeight - top) <= this.offset + this.canvas.clientHeight;
  }

  fit() {
    const width = this.element.clientWidth;
    // A removed element has no width.
    if (!width || !this.shown) return removeEventListener("scroll", this.onScroll);
    this.rows = this.countRows();
    this.element.style.height = `${this.rows * ROW + 2}px`;
    const full = this.rows * ROW;
    addEventListener("scroll", this.onScroll, { passive: true });
    const height = Math.min(full, innerHeight + 2 * MARGIN);
    const { top } = this.element.getBoundingClientRect();
    this.offset = Math.max(0, Math.min(full - height, -top - MARGIN));
    this.canvas.style.top = `${this.offset}px`;
    this.resize(width, height);
    this.draw();
  }

  /** The top of a node's row, in pixels of the canvas. */
  top(/** @type {number} */ depth) {
    const { upward } = /** @type {Shown} */ (this.shown);
    return (upward ? this.rows - 1 - depth : depth) * ROW - this.offset;
  }

  /** A node's [left, width] at the current zoom, in pixels. */
  span(/** @type {number} */ node) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    const width = this.element.clientWidth;
    if (node <= zoom && tree.end[node] > zoom) return [0, width];
    const scale = width / (tree.width[zoom] || 1);
    return [(tree.x[node] - tree.x[zoom]) * scale, tree.width[node] * scale];
  }

  draw() {
    if (!this.shown || this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      this.paint();
    });
  }

  paint() {
    if (!this.shown) return;
    const { zoom } = this.shown;
    const context = this.cleared(FONT);
    for (const node of this.drawn()) this.box(context, node, node < zoom ? 0.6 : 1);
    this.outline(context, this.hovered, this.theme.text, 1);
    this.outline(context, this.shown.selected, this.theme.focus, 2);
  }

  box(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {number} */ alpha) {
    const { tree, hits } = /** @type {Shown} */ (this.shown);
    const top = this.top(tree.depth[node]);
    if (top < -ROW || top > this.canvas.clientHeight) return;
    const [left, width] = this.span(node);
    const frame = tree.frame[node];
    const hit = hits?.[frame];
    context.globalAlpha = hits && !hit ? alpha * 0.45 : alpha;
    context.fillStyle = hit ? this.theme.hit : tree.isDiff ? changeFill(tree, node, this.theme.dark) : this.fills[frame];
    context.fillRect(left, top, Math.max(1, width - (width > 3 ? 1 : 0)), ROW - 1);
    context.globalAlpha = hits && !hit ? Math.max(0.6, alpha * 0.7) : 1;
    if (width > 28) this.label(context, node, left, top, width);
    context.globalAlpha = 1;
  }

  label(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ width) {
    const { tree, hits } = /** @type {Shown} */ (this.shown);
    context.fillStyle = hits?.[tree.frame[node]] ? "#1b1b1b" : this.theme.text;
    context.fillText(this.text(context, drawnName(tree.frameOf(node)), node, width - 8), left + 4, top + ROW / 2);
  }

  outline(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {string} */ colour, /** @type {number} */ line) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    if (node < 0 || node >= tree.count) return;
    const isAncestor = node <= zoom && tree.end[node] > zoom;
    if (!isAncestor && (node < zoom || node >= tree.end[zoom])) return;
    const [left, width] = this.span(node);
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(left + line / 2, this.top(tree.depth[node]) + line / 2, Math.max(2, width - 1 - line), ROW - 1 - line);
  }

  at(/** @type {number} */ x, /** @type {number} */ y) {
    const { tree, zoom, upward } = /** @type {Shown} */ (this.shown);
    const row = Math.floor((y - this.top(upward ? this.rows - 1 : 0)) / ROW);
    const depth = upward ? this.rows - 1 - row : row;
    if (row < 0 || depth < 0 || depth >= this.rows) return -1;
    if (depth <= tree.depth[zoom]) return [0, ...tree.path(zoom)][depth] ?? -1;
    let node = zoom;
    while (tree.depth[node] < depth) {
      const child = tree.children(node).find((c) => {
        const [left, width] = this.span(c);
        return width >= 1 && x >= left && x < left + width;
      });
      if (child === undefined) return -1;
      node = child;
    }
    return node;
  }

  hover(/** @type {MouseEvent | null} */ event) {
    super.hover(event);
    this.canvas.style.cursor = this.hovered >= 0 ? "pointer" : "";
  }

  /** @override */
  visible(/** @type {number[]} */ nodes) {
    return nodes.filter((node) => this.span(node)[1] >= 1);
  }

  /** Scrolls a node's row into view, above the details that cover the lower edge of the window. */
  reveal(/** @type {number} */ node) {
    if (!this.shown || node < 0) return;
    const top = this.top(this.shown.tree.depth[node]) + this.canvas.getBoundingClientRect().top;
    // The details lie over the lower part of the graph, with the source text if it is shown.
    const details = document.getElementById(this.canvas.getAttribute("aria-describedby") ?? "");
    const covered = /** @type {HTMLElement | null | undefined} */ (details?.closest(".selection"))?.offsetHeight ?? 0;
    const below = top + 2 * ROW - (innerHeight - covered);
    if (top < ROW) scrollBy(0, top - ROW);
    else if (below > 0) scrollBy(0, below);
  }
}
