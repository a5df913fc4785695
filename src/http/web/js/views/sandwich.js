// One function: its callers above, its callees below. memprof cuts each stack at the function's outermost frame, so each byte
// counts once on both sides even if the function is recursive.

import { api } from "../api.js";
import { display, h, setProperties, setText } from "../dom.js";
import { isFiltered } from "../filter.js";
import { baseName, estimateWithError, percent } from "../format.js";
import { label, noSymbol } from "../glossary.js";
import { change, openSandwich, state } from "../state.js";
import { isDark } from "../theme.js";
import { Functions } from "./functions.js";
import { Graph } from "./graph.js";

const EMPTY = "No stack through this function has memory of this kind. Select another kind, or another function.";

/** The tree whose root is the selected function. */
async function focused(/** @type {string} */ dir, /** @type {number | undefined} */ report = undefined) {
  const { fn, path } = state;
  const tree = await api.focus({ ...state, dir }, report);
  const module = baseName(path);
  const own = tree.frames.find((frame) => frame.path === path)?.own;
  Object.assign(tree.frameOf(0), { type: "function", name: fn || noSymbol(module), text: fn, module, path, own });
  return tree;
}

export class Sandwich {
  constructor() {
    // The function is selected already: a search finds others above and below it.
    const query = () => ({ q: state.q, fn: "", path: "" });
    this.callers = new Graph({ draw: "flame", callers: true, fetch: () => focused("callers", this.callees.tree?.report?.number), empty: EMPTY, at: { zoom: "zoomUp", sel: "selUp" }, upward: true, query });
    this.callees = new Graph({ draw: "flame", callers: false, fetch: () => focused("callees"), empty: EMPTY, upward: false, query });
    this.list = new Functions({ open: (row) => openSandwich(row.function ?? "", row.path), about: "Click a function to see its callers and callees." });
    this.name = h("h2", { class: "sub" });
    this.figures = h("p", { class: "note", id: "focus" });
    const back = h("button", { class: "small", onclick: () => change({ fn: "", path: "", q: "" }, true) }, "← all functions");
    const half = (/** @type {string} */ title, /** @type {Graph} */ graph) => h("section", { class: "half", "aria-label": title }, h("h3", {}, title), graph.element);
    this.halves = h("div", { class: "sandwich" }, h("div", { class: "focus-head" }, back, this.name), this.figures, half("Callers: stacks that lead to this function", this.callers), half("Callees: functions that it calls", this.callees));
    this.element = h("div", { class: "graph" });
    /** The state in which each half was last drawn. @type {Map<Graph, { tree: import("../tree/model.js").Tree | null, settings: string }>} */
    this.drawn = new Map();
    /** The function that the page last scrolled to. */
    this.revealed = "";
  }

  /** The half that keys control. */
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
    // Both halves need the same report: the request of another client can make a newer one in between. Replies with a filter are
    // always of the moment of the request.
    let report, above;
    const maxTries = isFiltered() ? 1 : 3;
    for (let tries = 0; tries < maxTries && (!report || above?.number !== report.number); tries++) {
      report = await this.callees.refresh();
      above = await this.callers.refresh();
    }
    this.show();
    return report;
  }

  /** Draws a half if it has changed: the zoom of one half does not redraw the other. */
  draw(/** @type {Graph} */ half, /** @type {string[]} */ position) {
    const settings = JSON.stringify([position, state.q, state.kind, isDark(), half.element.isConnected]);
    const last = this.drawn.get(half);
    if (last?.tree === half.tree && last.settings === settings) return;
    this.drawn.set(half, { tree: half.tree, settings });
    half.show();
  }

  show() {
    const shown = state.path ? this.halves : this.list.element;
    display(this.element, shown);
    if (!state.path) {
      const wasFocused = this.revealed !== "";
      this.revealed = "";
      // Another search, order or page of the list needs a request. When the user leaves a function, `refresh` follows.
      return wasFocused ? null : this.list.show();
    }
    this.draw(this.callers, [state.zoomUp, state.selUp]);
    this.draw(this.callees, [state.zoom, state.sel]);
    const tree = this.callees.tree;
    if (!tree) return;
    // The direct callers are at the lower end of a high graph.
    const selected = `${state.fn}\n${state.path}`;
    if (this.revealed !== selected && this.halves.isConnected) {
      this.revealed = selected;
      this.callers.drawing.reveal(0);
    }
    const { name, path } = tree.frameOf(0);
    setText(this.name, name);
    const [total, self] = [tree.value[0], tree.self[0]];
    const [all, own] = [estimateWithError(total, tree.error[0], tree.unit), estimateWithError(self, tree.selfError[0], tree.unit)];
    setText(this.figures, `${path}. Total ${all}, ${percent(total, tree.whole)} of ${label(state.kind)}; self ${own}.`);
    setProperties(this.figures, { "data-total": total, "data-self": self });
  }
}
