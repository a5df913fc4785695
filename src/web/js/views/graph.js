// Flame graph, icicle, treemap and tree table: one call tree with search and selection.

import { fill, h, notice, say, set } from "../dom.js";
import { bytes, change as signed, estimate, exact, exactly, percent } from "../format.js";
import { change, state } from "../state.js";
import { Flame } from "../tree/flame.js";
import { step } from "../tree/keys.js";
import { legend } from "../tree/legend.js";
import { search } from "../tree/search.js";
import { Treemap } from "../tree/treemap.js";
import { TreeTable } from "../tree/treetable.js";
import { label } from "../words.js";

/** @typedef {import("../tree/model.js").Tree} Tree */

const DRAWS = { flame: Flame, treemap: Treemap, tree: TreeTable };

/** Shows a call tree with the settings of the link. */
export class Graph {
  /** @param {{ draw: keyof DRAWS, fetch: () => Promise<Tree>, empty: string }} what */
  constructor(what) {
    this.what = what;
    /** @type {Tree | null} */
    this.tree = null;
    this.zoomed = 0;
    this.selection = h("div", { class: "selection", id: "selection", role: "status", "aria-live": "polite" });
    this.matched = h("output", { class: "matched", id: "matched", "aria-live": "polite" });
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "Zoomed into" });
    this.legend = h("div", { class: "legend" });
    this.tip = h("div", { class: "tip", hidden: true });
    const draw = DRAWS[what.draw];
    this.drawing = new draw({
      select: (node) => this.select(node),
      zoom: (node) => this.zoom(node),
      hover: (node, event) => this.hover(node, event),
    });
    this.stage = h("div", { class: "stage" }, this.drawing.element);
    this.element = h("div", { class: "graph" }, h("div", { class: "graph-head" }, this.crumbs, this.matched), this.legend, this.stage, this.selection, this.tip);
    if (!(this.drawing instanceof TreeTable)) this.drawing.canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
  }

  async refresh() {
    this.tree = await this.what.fetch();
    this.show();
  }

  get upward() {
    return this.what.draw === "flame" && state.shape === "flame";
  }

  /** Draws the current tree with the current settings of the link. */
  show() {
    const tree = this.tree;
    if (!tree) return;
    if (tree.width[0] === 0) {
      fill(this.stage, notice("Nothing here", this.what.empty));
      fill(this.crumbs);
      say(this.matched, "");
      fill(this.selection);
      return;
    }
    if (!this.stage.contains(this.drawing.element)) fill(this.stage, this.drawing.element);
    const zoom = Math.max(0, tree.find(state.zoom));
    const found = state.q ? search(tree, state.q, zoom) : null;
    const selected = state.sel ? tree.find(state.sel) : -1;
    this.zoomed = zoom;
    this.drawing.show({ tree, zoom, selected, hits: found?.frames ?? null, upward: this.upward });
    say(this.matched, found ? `${bytes(found.bytes)} matched (${percent(found.bytes, tree.value[zoom])}) in ${found.nodes} ${found.nodes === 1 ? "frame" : "frames"}` : "");
    set(this.matched, { "data-bytes": found ? found.bytes : null });
    this.path(tree, zoom);
    legend(this.legend, tree, zoom);
    this.describe(tree, selected >= 0 ? selected : zoom);
  }

  /** The path from the root to the zoomed node; a click on a part zooms out to it. */
  path(/** @type {Tree} */ tree, /** @type {number} */ zoom) {
    const nodes = [0, ...tree.path(zoom)];
    const shown = nodes.length > 8 ? [nodes[0], -1, ...nodes.slice(-6)] : nodes;
    fill(
      this.crumbs,
      ...shown.map((node) =>
        node < 0
          ? h("span", { class: "faint" }, "…")
          : h("button", { class: "crumb", "aria-current": node === zoom ? "true" : undefined, onclick: () => this.zoom(node), title: tree.of(node).name }, tree.of(node).name),
      ),
    );
  }

  /** The details of a node: [term, text, tooltip]. */
  facts(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const value = tree.value[node];
    const facts = [["total", estimate(value, tree.error[node]), `${exactly(value, tree.error[node])} of ${label(state.kind)}: this frame and everything below it`]];
    if (tree.before) {
      facts.unshift(["change", signed(tree.change(node)), exact(tree.change(node))]);
      facts.push(["before", bytes(tree.before[node]), exact(tree.before[node])]);
    }
    facts.push(["self", bytes(tree.self[node]), `${exact(tree.self[node])} of stacks that end in this frame`]);
    facts.push(["of all", percent(value, tree.value[0]), "share of everything in this view"]);
    if (this.zoomed) facts.push(["of zoomed", percent(value, tree.value[this.zoomed]), "share of the frame that is zoomed in"]);
    return facts;
  }

  describe(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const frame = tree.of(node);
    const facts = this.facts(tree, node).map(([term, text, title]) => h("span", { class: "fact", title }, h("span", { class: "faint" }, `${term} `), h("b", {}, text)));
    const where = [frame.module, frame.offset && `+0x${frame.offset}`, frame.type === "inlined" && "inlined"].filter(Boolean).join(" ");
    fill(
      this.selection,
      h("div", { class: "name", title: frame.name }, frame.name),
      where && h("div", { class: "faint where", title: frame.path }, where),
      h("div", { class: "facts" }, ...facts),
      node > 0 && h("div", { class: "actions" },
        h("button", { class: "small", onclick: () => change({ q: frame.name }, true), title: "Highlight this function everywhere" }, "find everywhere"),
        h("button", { class: "small", onclick: () => this.zoom(node) }, "zoom in"),
        this.zoomed > 0 && h("button", { class: "small", onclick: () => this.zoom(0) }, "zoom out")),
    );
    set(this.selection, { "data-key": tree.key(node), "data-bytes": tree.value[node] });
  }

  select(/** @type {number} */ node) {
    if (this.tree) change({ sel: this.tree.key(node) });
  }

  zoom(/** @type {number} */ node) {
    const tree = this.tree;
    if (!tree) return;
    const key = tree.key(node);
    change({ zoom: key, sel: key }, key !== state.zoom);
  }

  key(/** @type {KeyboardEvent} */ event) {
    const tree = this.tree;
    if (!tree || event.ctrlKey || event.altKey || event.metaKey) return;
    const selected = state.sel ? tree.find(state.sel) : -1;
    const found = step(tree, selected, this.zoomed, event.key, this.upward);
    if (!found) return;
    event.preventDefault();
    event.stopPropagation();
    const [what, node] = found;
    if (what === "zoom") return this.zoom(node);
    const inside = node >= this.zoomed && node < tree.end[this.zoomed];
    if (!inside) this.zoom(node);
    else this.select(node);
    this.drawing.reveal(node);
  }

  hover(/** @type {number} */ node, /** @type {MouseEvent | null} */ event) {
    const tree = this.tree;
    this.tip.hidden = node < 0 || !tree || !event;
    if (this.tip.hidden || !tree || !event) return;
    const frame = tree.of(node);
    const facts = this.facts(tree, node).map(([term, text]) => `${term} ${text}`);
    fill(this.tip, h("b", {}, frame.name), h("div", { class: "faint" }, frame.module), h("div", {}, facts.join(" · ")));
    const { width, height } = this.tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    // On the side of the frame's parents: its children are what is read next.
    const [above, below] = [event.clientY - height - 24, event.clientY + 24];
    const top = this.upward ? (below + height > innerHeight ? above : below) : above < 0 ? below : above;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${Math.max(4, top)}px`;
  }
}
