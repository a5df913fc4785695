// Treemap on a canvas: each node's area represents its bytes; nested boxes are callees (or callers).

import { hierarchy, treemap } from "../../vendor/d3-hierarchy/d3-hierarchy.min.mjs";
import { TreeCanvas } from "./canvas.js";
import { changeFill, fills, theme } from "./colours.js";
import { drawnName } from "./names.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./canvas.js").Shown} Shown */

/** Minimum area of a box, in square pixels. The area of a smaller box is left to its parent. */
const MIN_AREA = 60;
/** Height of a box's heading, in pixels. */
const HEADING = 16;
const FONT = "12px system-ui, sans-serif";

export class Treemap extends TreeCanvas {
  /** @param {import("./canvas.js").Callbacks} callbacks */
  constructor(callbacks) {
    super(callbacks, "treemap");
    this.element.classList.add("treemap");
    /** @type {any[]} */
    this.boxes = [];
  }

  show(/** @type {Shown} */ shown) {
    this.shown = shown;
    this.theme = theme();
    this.fills = fills(shown.tree, this.theme.dark);
    this.fit();
  }

  fit() {
    if (!this.shown) return;
    const { tree, zoom } = this.shown;
    const [width, height] = [this.element.clientWidth, this.element.clientHeight];
    if (!width || !height) return;
    this.resize(width, height);
    const min = (tree.width[zoom] * MIN_AREA) / (width * height);
    const root = hierarchy(zoom, (/** @type {number} */ node) => tree.children(chainEnd(tree, node)).filter((child) => tree.width[child] >= min));
    // The area of a node outside its boxes is its own bytes, and children below the minimum area.
    root.eachAfter((/** @type {any} */ box) => {
      const within = (box.children ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ child) => sum + child.value, 0);
      box.value = Math.max(tree.width[box.data], within);
    });
    root.sort((/** @type {any} */ a, /** @type {any} */ b) => b.value - a.value || a.data - b.data);
    // @ts-ignore: the package has no types
    treemap().size([width, height]).paddingOuter(2).paddingTop(HEADING).paddingInner(1).round(true)(root);
    this.boxes = root.descendants();
    this.draw();
  }

  draw() {
    if (!this.shown) return;
    const { tree, hits, selected } = this.shown;
    const context = this.cleared(FONT);
    for (const { data: node, x0, y0, x1, y1 } of this.boxes) {
      const [width, height] = [x1 - x0, y1 - y0];
      if (width < 1 || height < 1) continue;
      const hit = hits?.[tree.frame[node]];
      context.fillStyle = this.theme.back;
      context.fillRect(x0, y0, width, height);
      context.globalAlpha = hits && !hit ? 0.5 : 1;
      context.fillStyle = hit ? this.theme.hit : tree.isDiff ? changeFill(tree, node, this.theme.dark) : this.fills[tree.frame[node]];
      context.fillRect(x0, y0, width, height);
      context.globalAlpha = 1;
      context.strokeStyle = this.theme.back;
      context.lineWidth = 1;
      context.strokeRect(x0 + 0.5, y0 + 0.5, width - 1, height - 1);
      if (width > 40 && height > 12) this.label(context, node, x0, y0, x1, y1, Boolean(hit));
    }
    this.outline(context, this.hovered, this.theme.text, 1);
    this.outline(context, selected, this.theme.focus, 2);
  }

  label(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {number} */ x0, /** @type {number} */ y0, /** @type {number} */ x1, /** @type {number} */ y1, /** @type {boolean} */ hit) {
    const { tree } = /** @type {Shown} */ (this.shown);
    context.save();
    context.beginPath();
    context.rect(x0, y0, x1 - x0 - 2, y1 - y0);
    context.clip();
    context.fillStyle = hit ? "#1b1b1b" : this.theme.text;
    const last = chainEnd(tree, node);
    const name = drawnName(tree.frameOf(node));
    const names = last === node ? name : `${name} › ${drawnName(tree.frameOf(last))}`;
    const available = x1 - x0 - 8;
    // If the names of a chain do not fit, only the first is shown.
    const whole = this.measure(context, names) <= available ? names : name;
    context.fillText(this.text(context, whole, node, available), x0 + 4, y0 + HEADING / 2 + 1);
    context.restore();
  }

  outline(/** @type {CanvasRenderingContext2D} */ context, /** @type {number} */ node, /** @type {string} */ colour, /** @type {number} */ line) {
    const box = node < 0 ? null : this.boxes.find((b) => b.data === node);
    if (!box) return;
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(box.x0 + line / 2, box.y0 + line / 2, box.x1 - box.x0 - line, box.y1 - box.y0 - line);
  }

  at(/** @type {number} */ x, /** @type {number} */ y) {
    const inside = this.boxes.filter((b) => x >= b.x0 && x < b.x1 && y >= b.y0 && y < b.y1);
    return inside.length ? inside[inside.length - 1].data : -1;
  }

  /** @override */
  visible(/** @type {number[]} */ nodes) {
    const drawn = new Set(this.boxes.map((box) => box.data));
    return nodes.filter((node) => drawn.has(node));
  }

  /** Does nothing: every node is visible. */
  reveal() {}
}

/** The last node of a chain whose nodes have equal bytes. A chain is drawn as one box. */
function chainEnd(/** @type {Tree} */ tree, /** @type {number} */ node) {
  for (;;) {
    const child = node + 1;
    if (child >= tree.end[node] || tree.width[child] < tree.width[node]) return node;
    node = child;
  }
}
