// A call tree as flame graph, icicle, treemap or table, with search, selection and zoom.

import { display, h, notice, replace, setProperties, setText } from "../dom.js";
import { isFiltered } from "../filter.js";
import { baseName, estimate, estimateWithError, exactWithError, number, percent, signed } from "../format.js";
import { fileAndLine, label, noSymbol } from "../glossary.js";
import { EMPTY_TITLE, emptyText } from "../kinds.js";
import { isOffline } from "../offline.js";
import { SourcePanel } from "../source.js";
import { change, openSandwich, state } from "../state.js";
import { Flame } from "../tree/flame.js";
import { keyAction } from "../tree/keys.js";
import { showLegend } from "../tree/legend.js";
import { search } from "../tree/search.js";
import { Treemap } from "../tree/treemap.js";
import { TreeTable } from "../tree/treetable.js";

/** @typedef {import("../tree/model.js").Tree} Tree */

const DRAWINGS = { flame: Flame, treemap: Treemap, tree: TreeTable };

/** Whether a node is below another node. */
function contains(/** @type {Tree} */ tree, /** @type {number} */ above, /** @type {number} */ node) {
  return above < node && node < tree.end[above];
}

/** Shows a call tree with the settings of the link. */
export class Graph {
  /**
   * @param {object} options
   * @param {keyof DRAWINGS} options.draw
   * @param {() => Promise<Tree>} options.fetch
   * @param {string} options.empty the text for a tree without memory, or for a diff without changes
   * @param {string} [options.kind] the kind of memory; by default, the setting of the link
   * @param {{ zoom: "zoom" | "zoomUp", sel: "sel" | "selUp" }} [options.at] the settings of the link for zoom and selection
   * @param {boolean} [options.callers] whether the children of a frame are its callers; by default, the setting of the link
   * @param {boolean} [options.upward] whether the root is at the bottom; by default, the setting of the link
   * @param {() => import("../tree/search.js").Query} [options.query] the search; by default, the setting of the link
   */
  constructor(options) {
    this.options = options;
    this.at = options.at ?? { zoom: "zoom", sel: "sel" };
    /** The keys of earlier zooms, for Escape. @type {string[]} */
    this.trail = [];
    /** The matching nodes. @type {number[]} */
    this.found = [];
    this.selected = -1;
    /** @type {Tree | null} */
    this.tree = null;
    this.zoomed = 0;
    const id = (/** @type {string} */ name) => (options.at ? `${name}-${options.at.zoom}` : name);
    this.about = h("div", { class: "details", id: id("details"), role: "status", "aria-live": "polite" });
    this.source = new SourcePanel();
    this.selection = h("div", { class: "selection", id: id("selection") }, this.about, this.source.element);
    this.matched = h("output", { class: "matched", id: id("matched"), "aria-live": "polite" });
    this.position = h("span", { class: "place" });
    const button = (/** @type {string} */ text, /** @type {number} */ step, /** @type {string} */ title) => h("button", { class: "small", title, "aria-label": title, onclick: () => this.step(step) }, text);
    this.steps = h("span", { class: "steps", hidden: true }, button("‹", -1, "Previous match (N)"), this.position, button("›", 1, "Next match (n)"),
      h("button", { class: "small", title: "End the search", "aria-label": "End the search", onclick: () => change({ q: "", fn: "", path: "" }) }, "×"));
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "Zoomed into" });
    this.legend = h("div", { class: "legend" });
    this.tip = h("div", { class: "tip", hidden: true });
    const Drawing = DRAWINGS[options.draw];
    this.drawing = new Drawing({
      select: (node) => this.select(node),
      zoom: (node) => this.zoom(node),
      hover: (node, event) => this.hover(node, event),
    });
    this.stage = h("div", { class: "stage" }, this.drawing.element);
    this.element = h("div", { class: "graph" }, h("div", { class: "graph-head" }, this.crumbs, this.legend, h("div", { class: "found" }, this.matched, this.steps)), this.stage, this.selection, this.tip);
    if (!(this.drawing instanceof TreeTable)) {
      this.drawing.canvas.setAttribute("aria-describedby", this.about.id);
      this.drawing.canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.handleKey(event));
    }
  }

  async refresh() {
    this.tree = await this.options.fetch();
    this.show();
    return this.tree.report;
  }

  get upward() {
    return this.options.upward ?? (this.options.draw === "flame" && state.shape === "flame");
  }

  /** The kind of memory in the tree. */
  get kind() {
    return this.options.kind ?? state.kind;
  }

  /** Draws the current tree with the current settings of the link. */
  show() {
    const tree = this.tree;
    if (!tree) return;
    if (tree.width[0] === 0) {
      const [title, why] = tree.isDiff ? [EMPTY_TITLE, this.options.empty] : emptyText(this.kind, tree.report?.total, this.options.empty, isFiltered());
      replace(this.stage, notice(title, why));
      replace(this.crumbs);
      setText(this.matched, "");
      this.steps.hidden = this.tip.hidden = this.selection.hidden = true;
      setProperties(this.selection, { "data-key": "", "data-bytes": tree.value[0] });
      return;
    }
    display(this.stage, this.drawing.element);
    const zoom = Math.max(0, tree.find(state[this.at.zoom]));
    const query = this.options.query?.() ?? state;
    const found = search(tree, query, zoom);
    const selected = state[this.at.sel] ? tree.find(state[this.at.sel]) : -1;
    this.zoomed = zoom;
    this.selected = selected;
    this.found = found?.nodes ?? [];
    // The drawing is last: it may scroll to a match, and the elements around it must have their final heights then.
    this.showMatches(tree, query, found);
    this.showPath(tree, zoom);
    showLegend(this.legend, tree, zoom);
    this.showDetails(tree, selected >= 0 ? selected : zoom);
    this.drawing.show({ tree, zoom, selected, hits: found?.frames ?? null, found: this.found, query: `${query.q}\n${query.fn}\n${query.path}`, upward: this.upward });
    if (found) this.showPosition();
    this.drawing.hoverAgain?.();
  }

  /** Shows how much memory matches the search. */
  showMatches(/** @type {Tree} */ tree, /** @type {import("../tree/search.js").Query} */ { fn, path }, /** @type {ReturnType<search>} */ found) {
    this.steps.hidden = !found;
    if (!found) setText(this.matched, "");
    setProperties(this.matched, { "data-bytes": null });
    if (!found) return;
    const [whole, known] = [tree.value[this.zoomed], tree.found];
    // memprof also counts frames that the tree leaves out.
    const isKnown = path && this.zoomed === 0 && known?.fn === fn && known.path === path;
    const sum = isKnown ? known.bytes : found.bytes;
    const count = found.nodes.length;
    const file = baseName(path);
    const name = path ? `${fn ? `${fn} (${file})` : noSymbol(file)}: ` : "";
    setText(this.matched, `${name}${estimate(sum, found.error, tree.unit)} matched (${percent(sum, whole)}) in ${number(count)} ${count === 1 ? "frame" : "frames"}`);
    setProperties(this.matched, { "data-bytes": sum });
  }

  /** Shows the position of the selected match among the visible ones. */
  showPosition() {
    const nodes = this.drawing.visible(this.found);
    const at = nodes.indexOf(this.selected);
    const none = this.found.length ? "too narrow to see" : "";
    setText(this.position, nodes.length ? `${at < 0 ? "–" : number(at + 1)} of ${number(nodes.length)}` : none);
  }

  /** Selects the next match, or the previous one. */
  step(/** @type {number} */ by) {
    const nodes = this.drawing.visible(this.found);
    if (!nodes.length) return;
    const at = nodes.indexOf(this.selected);
    const next = nodes[at < 0 ? (by > 0 ? 0 : nodes.length - 1) : (at + by + nodes.length) % nodes.length];
    this.select(next);
    this.drawing.reveal(next);
  }

  /** Shows the path from the root to the zoomed node. A click on a frame zooms out to it. */
  showPath(/** @type {Tree} */ tree, /** @type {number} */ zoom) {
    const nodes = [0, ...tree.path(zoom)];
    const shown = nodes.length > 8 ? [nodes[0], -1, ...nodes.slice(-6)] : nodes;
    replace(
      this.crumbs,
      ...shown.map((node) =>
        node < 0
          ? h("span", { class: "faint" }, "…")
          : h("button", { class: "crumb", "aria-current": node === zoom ? "true" : undefined, onclick: () => this.zoom(node), title: tree.frameOf(node).name }, tree.frameOf(node).name),
      ),
    );
  }

  /** The details of a node: [term, text, tooltip]. */
  facts(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const [value, unit] = [tree.value[node], tree.unit];
    const facts = [["total", estimateWithError(value, tree.error[node], unit), `${exactWithError(value, tree.error[node], unit)} of ${label(this.kind)}: this frame and everything below it`]];
    if (tree.before) {
      facts.unshift(["change", signed(tree.change(node), tree.error[node], unit), exactWithError(tree.change(node), tree.error[node], unit)]);
      facts.push(["before", estimateWithError(tree.before[node], tree.error[node], unit), exactWithError(tree.before[node], tree.error[node], unit)]);
    }
    const [term, about] = this.options.callers ?? state.dir === "callers" ? ["no caller", "whose outermost frame this is"] : ["self", "that end in this frame"];
    facts.push([term, estimateWithError(tree.self[node], tree.selfError[node], unit), `${exactWithError(tree.self[node], tree.selfError[node], unit)} of stacks ${about}`]);
    facts.push(["of all", percent(value, tree.whole), "share of everything in this view"]);
    if (this.zoomed) facts.push(["of zoomed", percent(value, tree.value[this.zoomed]), "share of the zoomed frame"]);
    return facts;
  }

  /** Shows the details of a node. */
  showDetails(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const facts = this.facts(tree, node).map(([term, text, title]) => h("span", { class: "fact", title }, h("span", { class: "faint" }, `${term} `), h("b", {}, text)));
    const { name, title, location, actions } = this.details(tree, node);
    replace(
      this.about,
      h("div", { class: "name", title }, name),
      location,
      h("div", { class: "facts" }, ...facts),
      actions.length > 0 && h("div", { class: "actions" }, ...actions),
    );
    this.selection.classList.toggle("whole", node === 0);
    this.selection.hidden = this.selected < 0;
    setProperties(this.selection, { "data-key": tree.key(node), "data-bytes": tree.value[node] });
    const wanted = state.src && this.selected > 0 && this.sourceOf(tree, node);
    if (wanted) this.source.show(wanted);
    else this.source.hide();
  }

  /** The function of a node whose source text can be shown. @returns {import("../source.js").Wanted | null} */
  sourceOf(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const { type, text, path, line } = tree.frameOf(node);
    if (isOffline || !path || !text || (type !== "function" && type !== "inlined")) return null;
    // A difference has the lines of its later moment.
    const mark = tree.before ? state.to : state.mark;
    return { fn: text, path, line, kind: this.kind, mark, unit: tree.unit, report: tree.report?.number };
  }

  /** The name of a node, the location of its code, and the buttons of its details. @returns {{ name: string, title: string, location: any, actions: any[] }} */
  details(/** @type {Tree} */ tree, /** @type {number} */ node) {
    const frame = tree.frameOf(node);
    const where = [fileAndLine(frame.module, frame.line), frame.offset && `+0x${frame.offset}`, frame.type === "inlined" && "inlined"].filter(Boolean).join(" ");
    return {
      name: frame.name,
      title: frame.name,
      location: where && h("div", { class: "faint where", title: frame.path }, where),
      actions: node === 0 ? [] : [
        h("button", { class: "small", onclick: () => change(frame.path ? { q: "", fn: frame.text, path: frame.path } : { q: frame.text, fn: "", path: "" }, true), title: "Highlight this function everywhere" }, "find everywhere"),
        frame.path && h("button", { class: "small", onclick: () => openSandwich(frame.text, frame.path ?? ""), title: "Show the callers and the callees of this function" }, "callers and callees"),
        this.sourceOf(tree, node) && h("button", { class: "small", "aria-pressed": state.src ? "true" : "false", onclick: () => change({ src: state.src ? "" : "1" }), title: "Show the source text, with the bytes of each line" }, "source"),
        h("button", { class: "small", onclick: () => this.zoom(node) }, "zoom in"),
        this.zoomOutButton(),
        h("button", { class: "small", onclick: () => change({ [this.at.sel]: "" }), title: "Close these details", "aria-label": "Close these details" }, "×"),
      ],
    };
  }

  /** The button that zooms out, if the graph is zoomed. */
  zoomOutButton() {
    return this.zoomed > 0 && h("button", { class: "small", onclick: () => this.zoom(0) }, "zoom out");
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

  /** Returns to the previous zoom, or to the parent if the previous zoom is unknown. */
  zoomBack() {
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

  handleKey(/** @type {KeyboardEvent} */ event) {
    const tree = this.tree;
    if (!tree || event.ctrlKey || event.altKey || event.metaKey) return;
    const found = keyAction(tree, this.selected, this.zoomed, event.key, this.upward);
    if (!found) return;
    event.preventDefault();
    event.stopPropagation();
    const [action, node] = found;
    if (action === "zoom") return this.zoom(node);
    const inside = node >= this.zoomed && node < tree.end[this.zoomed];
    if (!inside) this.zoom(node);
    else this.select(node);
    this.drawing.reveal(node);
  }

  hover(/** @type {number} */ node, /** @type {MouseEvent | null} */ event) {
    const tree = this.tree;
    this.tip.hidden = node < 0 || !tree || !event;
    if (this.tip.hidden || !tree || !event) return;
    const frame = tree.frameOf(node);
    const facts = this.facts(tree, node).map(([term, text]) => `${term} ${text}`);
    replace(this.tip, h("b", {}, frame.name), h("div", { class: "faint" }, fileAndLine(frame.module, frame.line)), h("div", {}, facts.join(" · ")));
    const { width, height } = this.tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    // The tooltip is on the side of the frame's parents, because users read the children next.
    const [above, below] = [event.clientY - height - 24, event.clientY + 24];
    const top = this.upward ? (below + height > innerHeight ? above : below) : above < 0 ? below : above;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${Math.max(4, top)}px`;
  }
}
