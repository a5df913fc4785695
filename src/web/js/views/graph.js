// Flame graph, icicle, treemap and tree table: one call tree with search, selection and zoom.

import { fill, h, notice, say, set } from "../dom.js";
import { isFiltered } from "../filter.js";
import { change as signed, estimate, estimateWithError, exactly, number, percent } from "../format.js";
import { nothingOf } from "../kinds.js";
import { change, openSandwich, state } from "../state.js";
import { Flame } from "../tree/flame.js";
import { step } from "../tree/keys.js";
import { legend } from "../tree/legend.js";
import { search } from "../tree/search.js";
import { Treemap } from "../tree/treemap.js";
import { TreeTable } from "../tree/treetable.js";
import { atLine, label, noSymbol } from "../glossary.js";

/** @typedef {import("../tree/model.js").Tree} Tree */

const DRAWS = { flame: Flame, treemap: Treemap, tree: TreeTable };

/** Whether a node is below another one. */
function contains(/** @type {Tree} */ tree, /** @type {number} */ above, /** @type {number} */ node) {
  return above < node && node < tree.end[above];
}

/** Shows a call tree with the settings of the link. */
export class Graph {
  /**
   * @param {object} what
   * @param {keyof DRAWS} what.draw
   * @param {() => Promise<Tree>} what.fetch
   * @param {string} what.empty what to say if there is nothing to draw
   * @param {string} [what.kind] the kind that the tree is of; by default, what the link says
   * @param {{ zoom: "zoom" | "zoomUp", sel: "sel" | "selUp" }} [what.at] the settings of the link that hold zoom and selection
   * @param {boolean} [what.callers] whether the children of a frame are its callers; by default, what the link says
   * @param {boolean} [what.upward] whether the root is at the bottom; by default, what the link says
   * @param {() => import("../tree/search.js").What} [what.wanted] what to find; by default, what the link says
   */
  constructor(what) {
    this.what = what;
    this.at = what.at ?? { zoom: "zoom", sel: "sel" };
    /** The keys of the earlier zooms, which Escape returns to. @type {string[]} */
    this.trail = [];
    /** The matching nodes. @type {number[]} */
    this.found = [];
    this.selected = -1;
    /** @type {Tree | null} */
    this.tree = null;
    this.zoomed = 0;
    const id = (/** @type {string} */ name) => (what.at ? `${name}-${what.at.zoom}` : name);
    this.selection = h("div", { class: "selection", id: id("selection"), role: "status", "aria-live": "polite" });
    this.matched = h("output", { class: "matched", id: id("matched"), "aria-live": "polite" });
    this.place = h("span", { class: "place" });
    const by = (/** @type {string} */ text, /** @type {number} */ step, /** @type {string} */ title) => h("button", { class: "small", title, "aria-label": title, onclick: () => this.step(step) }, text);
    this.steps = h("span", { class: "steps", hidden: true }, by("‹", -1, "Previous match (N)"), this.place, by("›", 1, "Next match (n)"),
      h("button", { class: "small", title: "End the search", "aria-label": "End the search", onclick: () => change({ q: "", fn: "", path: "" }) }, "×"));
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
    this.element = h("div", { class: "graph" }, h("div", { class: "graph-head" }, this.crumbs, h("div", { class: "found" }, this.matched, this.steps)), this.legend, this.stage, this.selection, this.tip);
    if (!(this.drawing instanceof TreeTable)) {
      this.drawing.canvas.setAttribute("aria-describedby", this.selection.id);
      this.drawing.canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    }
  }

  async refresh() {
    this.tree = await this.what.fetch();
    this.show();
    return this.tree.report;
  }

  get upward() {
    return this.what.upward ?? (this.what.draw === "flame" && state.shape === "flame");
  }

  /** The kind that the tree is of. */
  get kind() {
    return this.what.kind ?? state.kind;
  }

  /** Draws the current tree with the current settings of the link. */
  show() {
    const tree = this.tree;
    if (!tree) return;
    if (tree.width[0] === 0) {
      const [title, why] = nothingOf(this.kind, tree.report?.total, this.what.empty, isFiltered());
      fill(this.stage, notice(title, why));
      fill(this.crumbs);
      say(this.matched, "");
      this.steps.hidden = true;
      fill(this.selection);
      return;
    }
    if (!this.stage.contains(this.drawing.element)) fill(this.stage, this.drawing.element);
    const zoom = Math.max(0, tree.find(state[this.at.zoom]));
    const wanted = this.what.wanted?.() ?? state;
    const found = search(tree, wanted, zoom);
    const selected = state[this.at.sel] ? tree.find(state[this.at.sel]) : -1;
    this.zoomed = zoom;
    this.selected = selected;
    this.found = found?.nodes ?? [];
    // First what is above and below: a match is scrolled to where nothing moves it any more.
    this.tell(tree, wanted, found);
    this.path(tree, zoom);
    legend(this.legend, tree, zoom);
    this.describe(tree, selected >= 0 ? selected : zoom);
    this.drawing.show({ tree, zoom, selected, hits: found?.frames ?? null, found: this.found, sought: `${wanted.q}\n${wanted.fn}\n${wanted.path}`, upward: this.upward });
    if (found) this.count();
  }

  /** Says how much was found. */
  tell(/** @type {Tree} */ tree, /** @type {import("../tree/search.js").What} */ { fn, path }, /** @type {ReturnType<search>} */ found) {
    this.steps.hidden = !found;
    if (!found) say(this.matched, "");
    set(this.matched, { "data-bytes": null });
    if (!found) return;
    const [whole, known] = [tree.value[this.zoomed], tree.found];
    // The server also counts frames that the tree leaves out.
    const isKnown = path && this.zoomed === 0 && known?.fn === fn && known.path === path;
    const sum = isKnown ? known.bytes : found.bytes;
    const count = found.nodes.length;
    const file = path.slice(path.lastIndexOf("/") + 1);
    const name = path ? `${fn ? `${fn} (${file})` : noSymbol(file)}: ` : "";
    say(this.matched, `${name}${estimate(sum, found.error, tree.unit)} matched (${percent(sum, whole)}) in ${number(count)} ${count === 1 ? "frame" : "frames"}`);
    set(this.matched, { "data-bytes": sum });
  }

  /** Says which match is selected, of those that are shown. */
  count() {
    const nodes = this.drawing.listed(this.found);
    const at = nodes.indexOf(this.selected);
    const none = this.found.length ? "too narrow to see" : "";
    say(this.place, nodes.length ? `${at < 0 ? "–" : number(at + 1)} of ${number(nodes.length)}` : none);
  }

  /** Selects the next match, or the previous one. */
  step(/** @type {number} */ by) {
    const nodes = this.drawing.listed(this.found);
    if (!nodes.length) return;
    const at = nodes.indexOf(this.selected);
    const next = nodes[at < 0 ? (by > 0 ? 0 : nodes.length - 1) : (at + by + nodes.length) % nodes.length];
    this.select(next);
    this.drawing.reveal(next);
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
    const [value, unit] = [tree.value[node], tree.unit];
    const facts = [["total", estimateWithError(value, tree.error[node], unit), `${exactly(value, tree.error[node], unit)} of ${label(this.kind)}: this frame and everything below it`]];
    if (tree.before) {
      facts.unshift(["change", signed(tree.change(node), tree.error[node], unit), exactly(tree.change(node), tree.error[node], unit)]);
      facts.push(["before", estimateWithError(tree.before[node], tree.error[node], unit), exactly(tree.before[node], tree.error[node], unit)]);
    }
    const [end, what] = this.what.callers ?? state.dir === "callers" ? ["no caller", "whose outermost frame this is"] : ["self", "that end in this frame"];
    facts.push([end, estimateWithError(tree.self[node], tree.selfError[node], unit), `${exactly(tree.self[node], tree.selfError[node], unit)} of stacks ${what}`]);
    facts.push(["of all", percent(value, tree.whole), "share of everything in this view"]);
    if (this.zoomed) facts.push(["of zoomed", percent(value, tree.value[this.zoomed]), "share of the frame that is zoomed in"]);
    return facts;
  }

  describe(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const frame = tree.of(node);
    const facts = this.facts(tree, node).map(([term, text, title]) => h("span", { class: "fact", title }, h("span", { class: "faint" }, `${term} `), h("b", {}, text)));
    const where = [atLine(frame.module, frame.line), frame.offset && `+0x${frame.offset}`, frame.type === "inlined" && "inlined"].filter(Boolean).join(" ");
    fill(
      this.selection,
      h("div", { class: "name", title: frame.name }, frame.name),
      where && h("div", { class: "faint where", title: frame.path }, where),
      h("div", { class: "facts" }, ...facts),
      node > 0 && h("div", { class: "actions" },
        h("button", { class: "small", onclick: () => change(frame.path ? { q: "", fn: frame.text, path: frame.path } : { q: frame.text, fn: "", path: "" }, true), title: "Highlight this function everywhere" }, "find everywhere"),
        frame.path && h("button", { class: "small", onclick: () => openSandwich(frame.text, frame.path ?? ""), title: "Show what calls this function, and what it calls" }, "callers and callees"),
        h("button", { class: "small", onclick: () => this.zoom(node) }, "zoom in"),
        this.zoomed > 0 && h("button", { class: "small", onclick: () => this.zoom(0) }, "zoom out")),
    );
    this.selection.classList.toggle("whole", node === 0);
    set(this.selection, { "data-key": tree.key(node), "data-bytes": tree.value[node] });
  }

  select(/** @type {number} */ node) {
    if (this.tree) change({ [this.at.sel]: this.tree.key(node) });
  }

  zoom(/** @type {number} */ node) {
    const tree = this.tree;
    if (!tree) return;
    const [key, from] = [tree.key(node), state[this.at.zoom]];
    if (contains(tree, this.zoomed, node)) this.trail.push(from);
    change({ [this.at.zoom]: key, [this.at.sel]: key }, key !== from);
  }

  /** Leaves one zoom level: back to what was shown before, or to the parent if that is not known. */
  leave() {
    const { tree, zoomed } = this;
    if (!tree || !zoomed) return;
    let to = tree.parent[zoomed];
    while (this.trail.length) {
      const earlier = tree.find(/** @type {string} */ (this.trail.pop()));
      if (earlier < 0 || !contains(tree, earlier, zoomed)) continue;
      to = earlier;
      break;
    }
    this.zoom(to);
  }

  key(/** @type {KeyboardEvent} */ event) {
    const tree = this.tree;
    if (!tree || event.ctrlKey || event.altKey || event.metaKey) return;
    const found = step(tree, this.selected, this.zoomed, event.key, this.upward);
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
    fill(this.tip, h("b", {}, frame.name), h("div", { class: "faint" }, atLine(frame.module, frame.line)), h("div", {}, facts.join(" · ")));
    const { width, height } = this.tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    // On the side of the frame's parents: its children are what is read next.
    const [above, below] = [event.clientY - height - 24, event.clientY + 24];
    const top = this.upward ? (below + height > innerHeight ? above : below) : above < 0 ? below : above;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${Math.max(4, top)}px`;
  }
}
