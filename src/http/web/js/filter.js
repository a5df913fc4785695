// The filter of sampled allocations: an expression of CEL, which memprof evaluates, with examples to start from.

import { canFilter, hasSingle } from "./api.js";
import { fill, h, set } from "./dom.js";
import { change, state } from "./state.js";

/** @typedef {import("./api.js").Mark} Mark */

/** Expressions to start from: [what they choose, expression]. */
const EXAMPLES = /** @type {[string, string][]} */ ([
  ["short-lived and large", "lifetime < 0.5 && size > 65536"],
  ["what the maximum consisted of", "at_peak"],
  ["older than a minute, still there", "live && lifetime > 60.0"],
  ["below one function", "functions.exists(f, f.contains('parse'))"],
  ["in one library", "modules.exists(m, m.startsWith('libssl'))"],
]);

const ABOUT = "Only the sampled allocations for which this expression (CEL) is true. Names: size (bytes), born, died, lifetime, now (seconds since the first sample), live, temporary, at_peak, thread, process, functions, modules; mark('NAME') is the moment of a mark.";

/** Views whose data a filter chooses, if they show a kind of the heap. */
const VIEWS = ["flame", "treemap", "tree", "functions", "sandwich"];

/** Whether the open view can be filtered. */
const applies = () => (state.view === "allocations" ? hasSingle() : VIEWS.includes(state.view) && canFilter());

/** Whether the open view shows only the allocations that a filter chooses. */
export const isFiltered = () => applies() && state.filter !== "";

const option = (/** @type {string} */ value, /** @type {string} */ text) => h("option", { value, title: value }, text);

/** Filters by another expression. Enter and the choice of an example do; a step, so that Back undoes it. */
function apply(/** @type {string} */ filter) {
  change({ filter: filter.trim(), zoom: "", sel: "", zoomUp: "", selUp: "", page: "0" }, true);
}

export class FilterBox {
  constructor() {
    this.input = h("input", {
      id: "filter", type: "text", placeholder: "size > 65536 && lifetime < 0.5", maxLength: 500, autocomplete: "off", spellcheck: "false",
      title: ABOUT, "aria-describedby": "filter-error", value: state.filter, onchange: () => apply(this.input.value),
    });
    this.examples = h("select", { "aria-label": "Examples of filters", title: "Puts an example into the filter", onchange: () => this.take() });
    this.error = h("p", { class: "trouble", id: "filter-error", role: "alert", hidden: true });
    /** The marks that are offered. */
    this.signature = "";
    this.field = h("label", { class: "field", title: ABOUT }, h("span", {}, "Only allocations (filter)"), this.input);
    /** Empty and hidden where no filter applies. */
    this.element = h("div", { class: "filter", hidden: true });
    this.offer();
  }

  /** Offers the examples, and what was allocated since each of these marks. */
  offer(/** @type {Mark[]} */ marks = []) {
    const since = marks.map(({ id, name }) => option(`born > mark(${id}) && live`, `since ${name ?? `mark ${id}`}`));
    const signature = JSON.stringify(marks.map(({ id, name }) => [id, name]));
    // (Not while the list is open.)
    if (this.examples.firstChild && (signature === this.signature || document.activeElement === this.examples)) return;
    this.signature = signature;
    fill(this.examples, option("", "examples…"),
      since.length > 0 && h("optgroup", { label: "Allocated since a mark, still there" }, ...since),
      h("optgroup", { label: "Examples" }, ...EXAMPLES.map(([what, filter]) => option(filter, what))),
      option("none", "no filter: all allocations"));
  }

  take() {
    const { value } = this.examples;
    this.examples.value = "";
    this.examples.blur();
    if (value) apply(value === "none" ? "" : value);
  }

  /** Shows the state of the link. */
  update() {
    if (this.element.hidden === applies()) {
      this.element.hidden = !applies();
      fill(this.element, ...(applies() ? [this.field, this.examples, this.error] : []));
    }
    if (document.activeElement !== this.input && this.input.value !== state.filter) this.input.value = state.filter;
    if (!isFiltered()) this.say("");
  }

  /** Says why the filter cannot be used; an empty text if it can. */
  say(/** @type {string} */ why) {
    if (this.error.textContent !== why) this.error.textContent = why;
    this.error.hidden = why === "";
    set(this.input, { "aria-invalid": why ? "true" : null });
  }
}
