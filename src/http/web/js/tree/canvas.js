// The base of the flame graph and the treemap: a canvas whose nodes can be pointed at, selected and zoomed into.

import { h } from "../dom.js";
import { estimate, signed } from "../format.js";
import { theme } from "./colours.js";
import { shortName } from "./names.js";

/** @typedef {import("./model.js").Tree} Tree */

/**
 * @typedef {object} Shown
 * @property {Tree} tree
 * @property {number} zoom the node that fills the width
 * @property {number} selected a node, or -1
 * @property {Uint8Array | null} hits 1 for each frame that matches the search; null without a search
 * @property {number[]} found the matching nodes
 * @property {string} query the search, as one text
 * @property {boolean} upward whether the root is at the bottom
 */

/** @typedef {{ select: (node: number) => void, zoom: (node: number) => void, hover: (node: number, event: MouseEvent | null) => void }} Callbacks */

/** Minimum distance of a move of the pointer, in pixels. */
const MIN_MOVE = 4;
/** Width that a size needs at least beside a name, in pixels. */
const SIZE_WIDTH = 70;

export class TreeCanvas {
  /**
   * @param {Callbacks} callbacks
   * @param {string} kind the name of the drawing for assistive technology
   */
  constructor(callbacks, kind) {
    this.callbacks = callbacks;
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
    /** The last position of the pointer. @type {number[] | null} */
    this.pointer = null;
    /** The position at which the pointer is ignored until it moves. @type {number[] | null} */
    this.ignored = null;
    /** The last hover. @type {{ offsetX: number, offsetY: number, clientX: number, clientY: number } | null} */
    this.last = null;
    this.theme = theme();
    /** @type {string[]} */
    this.fills = [];
    /** Measured widths of texts, in pixels. @type {Map<string, number>} */
    this.widths = new Map();
    this.canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => this.hover(null));
    this.canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => this.click(event));
    this.canvas.addEventListener("keydown", () => this.ignorePointer());
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

  /** The visible ones of these nodes, in display order. */
  visible(/** @type {number[]} */ nodes) {
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

  /** The width of a text, in pixels. */
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
  truncate(/** @type {CanvasRenderingContext2D} */ context, /** @type {string} */ text, /** @type {number} */ available) {
    const full = this.measure(context, text);
    if (full <= available) return text;
    // Letters differ in width: start with an estimate, and shorten until the text fits.
    let length = Math.floor((text.length * (available - 12)) / full);
    const shortened = () => `${text.slice(0, length)}…`;
    while (length >= 2 && this.measure(context, shortened()) > available) length--;
    return length < 2 ? "" : shortened();
  }

  /** A node's name, with the size if both fit: a truncated figure would be a wrong figure. A name that does not fit is shortened. */
  text(/** @type {CanvasRenderingContext2D} */ context, /** @type {string} */ name, /** @type {number} */ node, /** @type {number} */ available) {
    const { tree } = /** @type {Shown} */ (this.shown);
    const fits = this.measure(context, name) <= available;
    const shown = fits ? name : shortName(name);
    const text = this.truncate(context, shown, available);
    if (text !== shown || available - this.measure(context, text) <= SIZE_WIDTH) return text;
    const whole = `${text}  ${tree.isDiff ? signed(tree.drawnChange(node), tree.error[node], tree.unit) : estimate(tree.value[node], tree.error[node], tree.unit)}`;
    // An error makes a figure long.
    return this.measure(context, whole) <= available ? whole : text;
  }

  hover(/** @type {MouseEvent | null} */ event) {
    if (!this.shown) return;
    if (event) {
      if (this.ignored && Math.hypot(event.clientX - this.ignored[0], event.clientY - this.ignored[1]) < MIN_MOVE) return;
      this.ignored = null;
      this.pointer = [event.clientX, event.clientY];
    }
    this.last = event && { offsetX: event.offsetX, offsetY: event.offsetY, clientX: event.clientX, clientY: event.clientY };
    const node = event ? this.at(event.offsetX, event.offsetY) : -1;
    if (node !== this.hovered) {
      this.hovered = node;
      this.draw();
    }
    this.callbacks.hover(node, event);
  }

  /** Repeats the last hover: with new data, another node or other figures are below the pointer. */
  hoverAgain() {
    if (this.last) this.hover(/** @type {MouseEvent} */ (this.last));
  }

  /**
   * Ignores the pointer until it moves. A click, a key or a scroll moves other nodes below the pointer, and a tooltip would
   * cover them.
   */
  ignorePointer() {
    this.ignored = this.pointer;
    this.hover(null);
  }

  click(/** @type {MouseEvent} */ event) {
    if (!this.shown) return;
    const node = this.at(event.offsetX, event.offsetY);
    if (node < 0) return;
    this.callbacks.select(node);
    this.callbacks.zoom(node);
    this.ignorePointer();
  }
}
