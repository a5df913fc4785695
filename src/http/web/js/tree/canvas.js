// What the flame graph and the treemap share: a canvas whose nodes can be pointed at, selected and zoomed into.

import { h } from "../dom.js";
import { change as signed, estimate } from "../format.js";
import { theme } from "./colours.js";

/** @typedef {import("./model.js").Tree} Tree */

/**
 * @typedef {object} Shown
 * @property {Tree} tree
 * @property {number} zoom the node that fills the width
 * @property {number} selected a node, or -1
 * @property {Uint8Array | null} hits which frames match the search
 * @property {number[]} found the nodes that match it
 * @property {string} sought what was searched for
 * @property {boolean} upward whether the root is at the bottom
 */

/** @typedef {{ select: (node: number) => void, zoom: (node: number) => void, hover: (node: number, event: MouseEvent | null) => void }} Does */

/** A pointer that moves less, in pixels, stands still. */
const MOVED = 4;
/** Room beside a name that a size needs, in pixels. */
const ROOM_FOR_SIZE = 70;

export class TreeCanvas {
  /**
   * @param {Does} does
   * @param {string} kind what assistive technology calls it
   */
  constructor(does, kind) {
    this.does = does;
    const name = kind[0].toUpperCase() + kind.slice(1);
    this.canvas = h("canvas", {
      class: "flame",
      tabIndex: 0,
      role: "application",
      "aria-roledescription": kind,
      "aria-label": `${name}. Arrow keys move between frames, Enter zooms in, Escape zooms out. The tree view shows the same data as a table.`,
    });
    this.element = h("div", { class: "drawing" }, this.canvas);
    /** @type {Shown | null} */
    this.shown = null;
    this.hovered = -1;
    /** Where the pointer is, and where it was left to rest. @type {number[] | null} */
    this.pointer = this.rest = null;
    this.theme = theme();
    /** @type {string[]} */
    this.fills = [];
    /** Widths of texts that were measured, in pixels. @type {Map<string, number>} */
    this.widths = new Map();
    this.canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => this.hover(null));
    this.canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => this.click(event));
    this.canvas.addEventListener("keydown", () => this.leave());
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  /** Adapts to a new size of the element, and draws. */
  fit() {}

  draw() {}

  /**
   * The node at a point of the canvas, or -1.
   * @returns {number}
   */
  at(/** @type {number} */ _x, /** @type {number} */ _y) {
    return -1;
  }

  /** Of these nodes, those that can be seen, in the order in which they are shown. */
  listed(/** @type {number[]} */ nodes) {
    return nodes;
  }

  /** Gives the canvas a size in CSS pixels. */
  resize(/** @type {number} */ width, /** @type {number} */ height) {
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width === Math.round(width * ratio) && this.canvas.height === Math.round(height * ratio)) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  /**
   * Clears the canvas; returns its context, which draws in CSS pixels.
   * @returns {CanvasRenderingContext2D}
   */
  cleared(/** @type {string} */ font) {
    const context = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.font = font;
    context.textBaseline = "middle";
    return context;
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
    // Letters differ in width: an estimate, and as much less as is needed.
    let fits = Math.floor((text.length * (room - 12)) / full);
    const part = () => `${text.slice(0, fits)}…`;
    while (fits >= 2 && this.measure(context, part()) > room) fits--;
    return fits < 2 ? "" : part();
  }

  /** A node's name, with its size if there is room for both: half a figure would be another one. */
  text(/** @type {CanvasRenderingContext2D} */ context, /** @type {string} */ name, /** @type {number} */ node, /** @type {number} */ room) {
    const { tree } = /** @type {Shown} */ (this.shown);
    const text = this.cut(context, name, room);
    if (text !== name || room - this.measure(context, text) <= ROOM_FOR_SIZE) return text;
    return `${text}  ${tree.isDiff ? signed(tree.change(node), tree.error[node], tree.unit) : estimate(tree.value[node], tree.error[node], tree.unit)}`;
  }

  hover(/** @type {MouseEvent | null} */ event) {
    if (!this.shown) return;
    if (event) {
      if (this.rest && Math.hypot(event.clientX - this.rest[0], event.clientY - this.rest[1]) < MOVED) return;
      this.rest = null;
      this.pointer = [event.clientX, event.clientY];
    }
    const node = event ? this.at(event.offsetX, event.offsetY) : -1;
    if (node !== this.hovered) {
      this.hovered = node;
      this.draw();
    }
    this.does.hover(node, event);
  }

  /**
   * Forgets the pointer until it moves: after a click, a key or a scroll, other nodes move below a pointer that
   * stands still, and what is shown beside it would cover them.
   */
  leave() {
    this.rest = this.pointer;
    this.hover(null);
  }

  click(/** @type {MouseEvent} */ event) {
    if (!this.shown) return;
    const node = this.at(event.offsetX, event.offsetY);
    if (node < 0) return;
    this.does.select(node);
    this.does.zoom(node);
    this.leave();
  }
}
