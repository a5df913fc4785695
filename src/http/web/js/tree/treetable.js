// The call tree as a table with collapsible rows.

import { h } from "../dom.js";
import { estimate, exactWithError, percent } from "../format.js";
import { SELF } from "../glossary.js";
import { bar, ESTIMATE_REM, Table, toggleButton } from "../table.js";
import { colouredFile } from "./legend.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./canvas.js").Shown} Shown */

/** Width of the button that opens a row, in pixels. */
const TOGGLE = 17;

export class TreeTable {
  /** @param {{ select: (node: number) => void, zoom: (node: number) => void }} callbacks */
  constructor(callbacks) {
    this.callbacks = callbacks;
    /** @type {Shown | null} */
    this.shown = null;
    /** Keys of rows that the user opened (true) or closed (false). */
    this.opened = new Map();
    /** 1 for each node with a match below it. These nodes are open. */
    this.pathToMatch = new Uint8Array();
    /** The last search. */
    this.query = "";
    /** The key of the selected node. */
    this.selected = "";
    /** Whether to scroll to the first match. */
    this.revealFirst = false;
    const tree = () => /** @type {Shown} */ (this.shown).tree;
    const columns = [
      { name: "value", label: "Total", title: "Memory of the frame and everything below it", numeric: true, rem: ESTIMATE_REM, cell: (/** @type {number} */ n) => bar(estimate(tree().value[n], tree().error[n], tree().unit), tree().value[n], tree().value[0]), tip: (/** @type {number} */ n) => exactWithError(tree().value[n], tree().error[n], tree().unit) },
      { name: "share", label: "Share", title: "Share of the whole", numeric: true, cell: (/** @type {number} */ n) => percent(tree().value[n], tree().value[0]) },
      { name: "self", label: "Self", title: SELF, numeric: true, rem: ESTIMATE_REM, cell: (/** @type {number} */ n) => estimate(tree().self[n], tree().selfError[n], tree().unit), tip: (/** @type {number} */ n) => exactWithError(tree().self[n], tree().selfError[n], tree().unit) },
      { name: "name", label: "Frame", wide: true, indent: (/** @type {number} */ n) => this.indent(n) + TOGGLE, cell: (/** @type {number} */ n) => this.name(n), tip: (/** @type {number} */ n) => tree().frameOf(n).name },
      { name: "module", label: "File", cell: (/** @type {number} */ n) => colouredFile(tree().frameOf(n).module, Boolean(tree().frameOf(n).own), tree().frameOf(n).line), tip: (/** @type {number} */ n) => tree().frameOf(n).path ?? tree().frameOf(n).module },
    ];
    this.table = new Table(columns, {
      label: "Call tree. Right arrow opens a row, left arrow closes it.",
      role: "treegrid",
      sort: () => {},
      key: (n) => tree().key(n),
      open: (n) => this.callbacks.select(n),
      keydown: (event, row) => this.handleKey(event, row),
      row: (element, n) => {
        element.setAttribute("aria-level", String(this.level(n) + 1));
        if (this.hasChildren(n)) element.setAttribute("aria-expanded", String(this.isOpen(n)));
        element.classList.toggle("hit", Boolean(this.shown?.hits?.[tree().frame[n]]));
      },
    });
    this.element = this.table.element;
  }

  /** Selects a node's row, and scrolls it into view. */
  reveal(/** @type {number} */ node) {
    const row = this.table.rows.indexOf(node);
    if (row >= 0) this.table.select(row);
  }

  /** The nodes among these that have a row, in the order of the rows. */
  visible(/** @type {number[]} */ nodes) {
    const set = new Set(nodes);
    return this.table.rows.filter((node) => set.has(node));
  }

  /** Opens the path to each match. A row that the user closes later is closed until another search. */
  openMatches(/** @type {Shown} */ { tree, found, query }) {
    this.pathToMatch = new Uint8Array(tree.count);
    for (const node of found) {
      for (let above = tree.parent[node]; above >= 0 && !this.pathToMatch[above]; above = tree.parent[above]) this.pathToMatch[above] = 1;
    }
    if (query === this.query) return;
    this.query = query;
    this.pathToMatch.forEach((open, node) => open && this.opened.delete(tree.key(node)));
    this.revealFirst = found.length > 0;
  }

  show(/** @type {Shown} */ shown) {
    if (shown !== this.shown) this.openMatches(shown);
    this.shown = shown;
    const rows = [];
    const stack = [shown.zoom];
    while (stack.length) {
      const node = /** @type {number} */ (stack.pop());
      rows.push(node);
      if (!this.isOpen(node)) continue;
      const children = shown.tree.children(node).sort((a, b) => shown.tree.width[a] - shown.tree.width[b] || b - a);
      stack.push(...children);
    }
    this.table.show(rows, "");
    if (this.revealFirst && this.element.isConnected) {
      this.reveal(this.visible(shown.found)[0]);
      this.revealFirst = false;
    }
    const selected = shown.selected < 0 ? "" : shown.tree.key(shown.selected);
    if (selected === this.selected) return;
    this.selected = selected;
    this.reveal(shown.selected);
  }

  /** Whether a row is open. By default, it is if a match is below it, or if it is a large part of the zoomed node. */
  isOpen(/** @type {number} */ node) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    return this.opened.get(tree.key(node)) ?? (this.pathToMatch[node] === 1 || this.level(node) < 40 && tree.width[node] >= tree.width[zoom] * 0.2);
  }

  level(/** @type {number} */ node) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    return tree.depth[node] - tree.depth[zoom];
  }

  /** Pixels before a row's name. The maximum is lower on a narrow screen, so that the name is visible. */
  indent(/** @type {number} */ node) {
    return this.table.narrow ? Math.min(this.level(node), 12) * 4 : Math.min(this.level(node), 60) * 12;
  }

  hasChildren(/** @type {number} */ node) {
    return /** @type {Shown} */ (this.shown).tree.end[node] > node + 1;
  }

  name(/** @type {number} */ node) {
    const frame = /** @type {Shown} */ (this.shown).tree.frameOf(node);
    const toggle = this.hasChildren(node)
      ? toggleButton(this.isOpen(node), (event) => {
          event.stopPropagation();
          this.setOpen(node, !this.isOpen(node));
        })
      : h("span", { class: "toggle" });
    const box = h("span", { class: `tree-name ${frame.type.startsWith("f") || frame.type === "root" || frame.type === "inlined" ? "" : "rest"}` }, toggle, frame.name);
    box.style.paddingInlineStart = `${this.indent(node)}px`;
    return box;
  }

  setOpen(/** @type {number} */ node, /** @type {boolean} */ open) {
    const shown = /** @type {Shown} */ (this.shown);
    this.opened.set(shown.tree.key(node), open);
    this.show(shown);
  }

  handleKey(/** @type {KeyboardEvent} */ event, /** @type {number} */ row) {
    const node = this.table.rows[row];
    if (node === undefined) return false;
    const { tree } = /** @type {Shown} */ (this.shown);
    if (event.key === "ArrowRight" && this.hasChildren(node)) {
      if (this.isOpen(node)) this.table.select(row + 1);
      else this.setOpen(node, true);
    } else if (event.key === "ArrowLeft") {
      if (this.hasChildren(node) && this.isOpen(node)) this.setOpen(node, false);
      else this.table.select(Math.max(0, this.table.rows.indexOf(tree.parent[node])));
    } else return false;
    return true;
  }
}
