// The call tree as a table with collapsible rows.

import { h } from "../dom.js";
import { estimate, exactly, percent } from "../format.js";
import { bar, ESTIMATE, Table } from "../table.js";
import { SELF } from "../glossary.js";
import { fileName } from "./legend.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./canvas.js").Shown} Shown */

/** Width of the button that opens a row, in pixels. */
const TOGGLE = 17;

export class TreeTable {
  /** @param {{ select: (node: number) => void, zoom: (node: number) => void }} does */
  constructor(does) {
    this.does = does;
    /** @type {Shown | null} */
    this.shown = null;
    /** Keys of rows that the user opened (true) or closed (false). */
    this.opened = new Map();
    /** The nodes with a match below them, which are open: only they have an entry. */
    this.toHits = new Uint8Array();
    /** The last search, and the key of the node that is selected in the link. */
    this.sought = "";
    this.selected = "";
    /** Whether the first match is yet to be scrolled to. */
    this.toFirst = false;
    const tree = () => /** @type {Shown} */ (this.shown).tree;
    const columns = [
      { name: "value", label: "Total", title: "The frame and everything below it", numeric: true, rem: ESTIMATE, cell: (/** @type {number} */ n) => bar(estimate(tree().value[n], tree().error[n], tree().unit), tree().value[n], tree().value[0]), tip: (/** @type {number} */ n) => exactly(tree().value[n], tree().error[n], tree().unit) },
      { name: "share", label: "Share", title: "Share of the whole", numeric: true, cell: (/** @type {number} */ n) => percent(tree().value[n], tree().value[0]) },
      { name: "self", label: "Self", title: SELF, numeric: true, rem: ESTIMATE, cell: (/** @type {number} */ n) => estimate(tree().self[n], tree().selfError[n], tree().unit), tip: (/** @type {number} */ n) => exactly(tree().self[n], tree().selfError[n], tree().unit) },
      { name: "name", label: "Frame", wide: true, indent: (/** @type {number} */ n) => this.indent(n) + TOGGLE, cell: (/** @type {number} */ n) => this.name(n), tip: (/** @type {number} */ n) => tree().of(n).name },
      { name: "module", label: "File", cell: (/** @type {number} */ n) => fileName(tree().of(n).module, Boolean(tree().of(n).own), tree().of(n).line), tip: (/** @type {number} */ n) => tree().of(n).path ?? tree().of(n).module },
    ];
    this.table = new Table(columns, {
      label: "Call tree. Right arrow opens a row, left arrow closes it.",
      role: "treegrid",
      sort: () => {},
      key: (n) => tree().key(n),
      open: (n) => this.does.select(n),
      keydown: (event, at) => this.key(event, at),
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

  /** Of these nodes, those that have a row, in the order of the rows. */
  listed(/** @type {number[]} */ nodes) {
    const wanted = new Set(nodes);
    return this.table.rows.filter((node) => wanted.has(node));
  }

  /** Opens the way to each match. A row that the user closes later stays closed until another search. */
  openHits(/** @type {Shown} */ { tree, found, sought }) {
    this.toHits = new Uint8Array(tree.count);
    for (const node of found) {
      for (let above = tree.parent[node]; above >= 0 && !this.toHits[above]; above = tree.parent[above]) this.toHits[above] = 1;
    }
    if (sought === this.sought) return;
    this.sought = sought;
    this.toHits.forEach((open, node) => open && this.opened.delete(tree.key(node)));
    this.toFirst = found.length > 0;
  }

  show(/** @type {Shown} */ shown) {
    if (shown !== this.shown) this.openHits(shown);
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
    if (this.toFirst && this.element.isConnected) {
      this.reveal(this.listed(shown.found)[0]);
      this.toFirst = false;
    }
    const selected = shown.selected < 0 ? "" : shown.tree.key(shown.selected);
    if (selected === this.selected) return;
    this.selected = selected;
    this.reveal(shown.selected);
  }

  /** The user's choice, or else open if it leads to a match or is a large part of the zoomed node. */
  isOpen(/** @type {number} */ node) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    return this.opened.get(tree.key(node)) ?? (this.toHits[node] === 1 || this.level(node) < 40 && tree.width[node] >= tree.width[zoom] * 0.2);
  }

  level(/** @type {number} */ node) {
    const { tree, zoom } = /** @type {Shown} */ (this.shown);
    return tree.depth[node] - tree.depth[zoom];
  }

  /** Pixels before a row's name. On a narrow screen they end where the name would have no room. */
  indent(/** @type {number} */ node) {
    return this.table.narrow ? Math.min(this.level(node), 12) * 4 : Math.min(this.level(node), 60) * 12;
  }

  hasChildren(/** @type {number} */ node) {
    return /** @type {Shown} */ (this.shown).tree.end[node] > node + 1;
  }

  name(/** @type {number} */ node) {
    const frame = /** @type {Shown} */ (this.shown).tree.of(node);
    const toggle = this.hasChildren(node)
      ? h("button", { class: "toggle", tabIndex: -1, "aria-label": this.isOpen(node) ? "close" : "open", onclick: (/** @type {Event} */ event) => {
          event.stopPropagation();
          this.set(node, !this.isOpen(node));
        } }, this.isOpen(node) ? "▾" : "▸")
      : h("span", { class: "toggle" });
    const box = h("span", { class: `tree-name ${frame.type.startsWith("f") || frame.type === "root" || frame.type === "inlined" ? "" : "rest"}` }, toggle, frame.name);
    box.style.paddingInlineStart = `${this.indent(node)}px`;
    return box;
  }

  set(/** @type {number} */ node, /** @type {boolean} */ open) {
    const shown = /** @type {Shown} */ (this.shown);
    this.opened.set(shown.tree.key(node), open);
    this.show(shown);
  }

  key(/** @type {KeyboardEvent} */ event, /** @type {number} */ at) {
    const node = this.table.rows[at];
    if (node === undefined) return false;
    const { tree } = /** @type {Shown} */ (this.shown);
    if (event.key === "ArrowRight" && this.hasChildren(node)) {
      if (this.isOpen(node)) this.table.select(at + 1);
      else this.set(node, true);
    } else if (event.key === "ArrowLeft") {
      if (this.hasChildren(node) && this.isOpen(node)) this.set(node, false);
      else this.table.select(Math.max(0, this.table.rows.indexOf(tree.parent[node])));
    } else return false;
    return true;
  }
}
