// Flame graph and icicle on a canvas. Only visible nodes that are at least a pixel wide are drawn.

import { h, fill } from "../dom.js";
import { change as signed, bytes, estimate } from "../format.js";
import { isDark } from "../theme.js";
import { TreeCanvas } from "./canvas.js";
import { changeFill, fills, theme } from "./colours.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./canvas.js").Shown} Shown */

const ROW = 20;
const FONT = "12px system-ui, sans-serif";

export class Flame extends TreeCanvas {
  /** @param {import("./canvas.js").Does} does */
  constructor(does) {
    super(does, "flame graph");
    this.space = h("div", { class: "flame-space" }, this.canvas);
    this.element.append(this.space);
    this.rows = 0;
    this.toRoot = true;
    this.queued = false;
    /** @type {Map<string, number>} */
    this.widths = new Map();
    this.element.addEventListener("scroll", () => this.draw());
  }

  show(/** @type {Shown} */ shown) {
    const turned = this.shown?.upward !== shown.upward;
    const fresh = this.shown?.tree !== shown.tree;
    const fromEnd = this.element.scrollHeight - this.element.scrollTop;
    const turnedDark = this.theme.dark !== isDark();
    this.shown = shown;
    this.theme = theme();
    if (fresh || turnedDark) this.fills = fills(shown.tree, this.theme.dark);
    this.rows = shown.tree.height;
    this.space.style.height = `${this.rows * ROW + 1}px`;
    if (turned) this.toRoot = true;
    else if (shown.upward) this.element.scrollTop = this.element.scrollHeight - fromEnd;
    this.fit();
  }

  fit() {
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    if (!height) return;
    if (this.toRoot) this.element.scrollTop = this.shown?.upward ? this.element.scrollHeight : 0;
    this.toRoot = false;
    this.resize(width, height);
    this.draw();
  }

  /** The top of a node's row, in pixels of the canvas. */
  top(/** @type {number} */ depth) {
    const { upward } = /** @type {Shown} */ (this.shown);
    const row = upward ? this.rows - 1 - depth : depth;
    // A root at the bottom stays there if the graph is less high than its box.
    const lift = upward ? Math.max(0, this.element.clientHeight - this.rows * ROW - 1) : 0;
    return row * ROW - this.element.scrollTop + lift;
  }

  /** A node's [left, width] at the current zoom, in pixels. */
  across(/** @type {number} */ node) {
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
    const { tree, zoom } = this.shown;
    const context = this.cleared(FONT);
    for (const node of [0, ...tree.path(zoom)]) if (node !== zoom) this.box(context, node, 0.6);
    let node = zoom;
    while (node < tree.end[zoom]) {
      // Descendants of a node that is too narrow are also too narrow.
      if (this.across(node)[1] < 1) {
        node = tree.end[node];
      } else {
        this.box(context, node, 1);
        node++;
      }
    }
    this.outline(context, this.hovered, this.theme.text, 1);
    this.outline(context, this.shown.selected, this.theme.focus, 2);
  }

  box(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {number} */ alpha) {
    const { tree, hits } = /** @type {Shown} */ (this.shown);
    const top = this.top(tree.depth[node]);
    if (top < -ROW || top > this.element.clientHeight) return;
    const [left, width] = this.across(node);
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
    const name = tree.of(node).name;
    let text = this.cut(context, name, width - 8);
    const room = width - 8 - this.measure(context, text);
    if (text === name && room > 70) {
      const amount = tree.isDiff ? signed(tree.change(node)) : estimate(tree.value[node], tree.error[node]);
      text += `  ${amount}`;
    }
    context.fillStyle = hits?.[tree.frame[node]] ? "#1b1b1b" : this.theme.text;
    context.fillText(text, left + 4, top + ROW / 2);
  }

  measure(/** @type {CanvasRenderingContext2D} */ context, /** @type {string} */ text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 20000) this.widths.clear();
      width = context.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  /** Truncates a text to the available width. */
  cut(/** @type {CanvasRenderingContext2D} */ context, /** @type {string} */ text, /** @type {number} */ room) {
    const full = this.measure(context, text);
    if (full <= room) return text;
    const fits = Math.floor((text.length * (room - 12)) / full);
    return fits < 2 ? "" : `${text.slice(0, fits)}…`;
  }

  outline(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {string} */ colour, /** @type {number} */ line) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    if (node < 0 || node >= tree.count) return;
    const above = node <= zoom && tree.end[node] > zoom;
    if (!above && (node < zoom || node >= tree.end[zoom])) return;
    const [left, width] = this.across(node);
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
        const [left, width] = this.across(c);
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
  listed(/** @type {number[]} */ nodes) {
    return nodes.filter((node) => this.across(node)[1] >= 1);
  }

  /** Scrolls a node's row into view. */
  reveal(/** @type {number} */ node) {
    if (!this.shown || node < 0) return;
    const top = this.top(this.shown.tree.depth[node]);
    const below = top + ROW - this.element.clientHeight;
    if (top < 0) this.element.scrollTop += top;
    else if (below > 0) this.element.scrollTop += below;
  }
}

/**
 * The bytes of the stacks with a frame of each file, and a colour of that file. Each byte counts once for a file, as in the
 * totals of functions, so the sums are the same in both directions.
 * @returns {Map<string, [number, string]>}
 */
function totals(/** @type {Tree} */ tree, /** @type {number} */ zoom, /** @type {string[]} */ colours) {
  const sums = new Map();
  /** The end of the subtree that was counted last for each file. */
  const counted = new Map();
  for (let node = Math.max(tree.of(0).type === "root" ? 1 : 0, zoom); node < tree.end[zoom]; node++) {
    const { type, module } = tree.of(node);
    if ((type !== "function" && type !== "inlined") || node < (counted.get(module) ?? 0)) continue;
    counted.set(module, tree.end[node]);
    const entry = sums.get(module) ?? [0, colours[tree.frame[node]]];
    entry[0] += tree.value[node];
    sums.set(module, entry);
  }
  return sums;
}

/** Shows the meaning of the colours. */
export function legend(/** @type {Element} */ element, /** @type {Tree} */ tree, /** @type {number} */ zoom) {
  const sample = (/** @type {string} */ colour, /** @type {string} */ text) => {
    const swatch = h("i", { class: "swatch" });
    swatch.style.background = colour;
    return h("span", {}, swatch, text);
  };
  const dark = theme().dark;
  if (tree.isDiff) {
    return fill(element, sample(dark ? "hsl(6 65% 38%)" : "hsl(6 85% 66%)", "grew"), sample(dark ? "hsl(214 65% 38%)" : "hsl(214 85% 66%)", "shrank"), sample(dark ? "hsl(220 5% 30%)" : "hsl(220 8% 88%)", "unchanged"));
  }
  const colours = fills(tree, dark);
  const bytesOf = totals(tree, zoom, colours);
  const largest = [...bytesOf].sort((a, b) => b[1][0] - a[1][0]).slice(0, 6);
  const more = bytesOf.size - largest.length;
  const title = "Bytes of the stacks with at least one frame of the file. Most stacks have frames of several files, so these sums overlap.";
  fill(element, largest.length > 0 && h("span", { class: "faint", title }, "total of each file:"), ...largest.map(([module, [total, colour]]) => sample(colour, `${module || "no file"} ${bytes(total)}`)), more > 0 && h("span", {}, `and ${more} more files`));
}
