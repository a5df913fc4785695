// One function: its callers above, what it calls below. memprof cuts each stack at the function's outermost frame, so
// each byte is counted once on both sides, also where the function is recursive.

import { api } from "../api.js";
import { fill, h, say, set } from "../dom.js";
import { isFiltered } from "../filter.js";
import { estimateWithError, percent } from "../format.js";
import { change, openSandwich, state } from "../state.js";
import { isDark } from "../theme.js";
import { label, noSymbol } from "../glossary.js";
import { Functions } from "./functions.js";
import { Graph } from "./graph.js";

const EMPTY = "No stack has memory of this kind in this function now. Select another kind of memory, or another function.";

/** The tree of the chosen function, whose root is that function. */
async function focused(/** @type {string} */ dir, /** @type {number | undefined} */ report = undefined) {
  const { fn, path } = state;
  const tree = await api.focus({ ...state, dir }, report);
  const module = path.slice(path.lastIndexOf("/") + 1);
  const own = tree.frames.find((frame) => frame.path === path)?.own;
  Object.assign(tree.of(0), { type: "function", name: fn || noSymbol(module), text: fn, module, path, own });
  return tree;
}

export class Sandwich {
  constructor() {
    // The function is chosen already: a search finds others above and below it.
    const wanted = () => ({ q: state.q, fn: "", path: "" });
    this.callers = new Graph({ draw: "flame", callers: true, fetch: () => focused("callers", this.callees.tree?.report?.number), empty: EMPTY, at: { zoom: "zoomUp", sel: "selUp" }, upward: true, wanted });
    this.callees = new Graph({ draw: "flame", callers: false, fetch: () => focused("callees"), empty: EMPTY, upward: false, wanted });
    this.list = new Functions({ open: (row) => openSandwich(row.function ?? "", row.path), about: "Choose one to see its callers and what it calls." });
    this.name = h("h2", { class: "sub" });
    this.figures = h("p", { class: "note", id: "focus" });
    const back = h("button", { class: "small", onclick: () => change({ fn: "", path: "", q: "" }, true) }, "← all functions");
    const half = (/** @type {string} */ title, /** @type {Graph} */ graph) => h("section", { class: "half", "aria-label": title }, h("h3", {}, title), graph.element);
    this.halves = h("div", { class: "sandwich" }, h("div", { class: "focus-head" }, back, this.name), this.figures, half("Callers: the stacks that lead to it", this.callers), half("Callees: what it calls", this.callees));
    this.element = h("div", { class: "graph" });
    /** What each half shows. @type {Map<Graph, { tree: import("../tree/model.js").Tree | null, settings: string }>} */
    this.drawn = new Map();
    /** The function that was scrolled to. */
    this.chosen = "";
  }

  /** The half that keys act on. */
  get graph() {
    if (!state.path) return null;
    if (this.callers.element.contains(document.activeElement)) return this.callers;
    if (this.callees.element.contains(document.activeElement)) return this.callees;
    return this.callees.found.length || this.callees.zoomed ? this.callees : this.callers;
  }

  async refresh() {
    if (!state.path) {
      const report = await this.list.refresh();
      this.show();
      return report;
    }
    // Both halves of one report: another client may have had a newer one made in between.
    let report, above;
    // (Filtered allocations are of the moment of each request.)
    const most = isFiltered() ? 1 : 3;
    for (let tries = 0; tries < most && (!report || above?.number !== report.number); tries++) {
      report = await this.callees.refresh();
      above = await this.callers.refresh();
    }
    this.show();
    return report;
  }

  /** Draws a half if something of it has changed: its zoom does not redraw the other one. */
  draw(/** @type {Graph} */ half, /** @type {string[]} */ at) {
    const settings = JSON.stringify([at, state.q, state.kind, isDark(), half.element.isConnected]);
    const last = this.drawn.get(half);
    if (last?.tree === half.tree && last.settings === settings) return;
    this.drawn.set(half, { tree: half.tree, settings });
    half.show();
  }

  show() {
    const shown = state.path ? this.halves : this.list.element;
    if (!this.element.contains(shown)) fill(this.element, shown);
    if (!state.path) {
      this.chosen = "";
      return;
    }
    this.draw(this.callers, [state.zoomUp, state.selUp]);
    this.draw(this.callees, [state.zoom, state.sel]);
    const tree = this.callees.tree;
    if (!tree) return;
    // Of a high tower of callers, the nearest ones are at its lower end.
    const chosen = `${state.fn}\n${state.path}`;
    if (this.chosen !== chosen && this.halves.isConnected) {
      this.chosen = chosen;
      this.callers.drawing.reveal(0);
    }
    const { name, path } = tree.of(0);
    say(this.name, name);
    const [total, self] = [tree.value[0], tree.self[0]];
    const [all, own] = [estimateWithError(total, tree.error[0], tree.unit), estimateWithError(self, tree.selfError[0], tree.unit)];
    say(this.figures, `${path}. Total ${all}, ${percent(total, tree.whole)} of ${label(state.kind)}; self ${own}.`);
    set(this.figures, { "data-total": total, "data-self": self });
  }
}
