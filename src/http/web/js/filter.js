// The filter of sampled allocations: a CEL expression that memprof evaluates, with examples.

import { canFilter, hasSingleAllocations, isSampling } from "./api.js";
import { h, replace, setProperties, setText } from "./dom.js";
import { change, state } from "./state.js";

/** @typedef {import("./api.js").Mark} Mark */

/** Examples: [description, expression]. */
const EXAMPLES = /** @type {[string, string][]} */ ([
  ["short-lived and large", "lifetime < 0.5 && size > 65536"],
  ["live at the maximum", "at_peak"],
  ["older than a minute, live", "live && lifetime > 60.0"],
  ["below one function", "functions.exists(f, f.contains('parse'))"],
  ["in one library", "modules.exists(m, m.startsWith('libssl'))"],
]);

const ABOUT = "Shows only the sampled allocations for which this CEL expression is true. Names: size (bytes), born, died, lifetime, now (seconds since the first sample), live, temporary, at_peak, thread, process, functions, modules. mark('NAME') is the time of a mark.";

/** Views that can be filtered while they show a kind of the heap. */
const VIEWS = ["flame", "treemap", "tree", "functions", "sandwich"];

/** Whether the open view can be filtered. */
const applies = () => (state.view === "allocations" ? hasSingleAllocations() && isSampling() : VIEWS.includes(state.view) && canFilter());

/** Whether the open view shows only the allocations that a filter matches. */
export const isFiltered = () => applies() && state.filter !== "";

const option = (/** @type {string} */ value, /** @type {string} */ text) => h("option", { value, title: value }, text);

/** Filters by another expression, as a step that Back undoes. */
function apply(/** @type {string} */ filter) {
  change({ filter: filter.trim(), zoom: "", sel: "", zoomUp: "", selUp: "", page: "0" }, true);
}

export class FilterBox {
  constructor() {
    this.input = h("input", {
      id: "filter", type: "text", placeholder: "size > 65536 && lifetime < 0.5", maxLength: 500, autocomplete: "off", spellcheck: "false",
      title: ABOUT, "aria-describedby": "filter-error", value: state.filter, onchange: () => apply(this.input.value),
    });
    this.examples = h("select", { "aria-label": "Examples of filters", title: "Inserts an example into the filter", onchange: () => this.useExample() });
    this.error = h("p", { class: "trouble", id: "filter-error", role: "alert", hidden: true });
    /** The marks in the list of examples. */
    this.signature = "";
    this.field = h("label", { class: "field", title: ABOUT }, h("span", {}, "Filter allocations"), this.input);
    /** Empty and hidden while no filter applies. */
    this.element = h("div", { class: "filter", hidden: true });
    this.offer();
  }

  /** Offers the examples, and for each mark a filter for allocations since then. */
  offer(/** @type {Mark[]} */ marks = []) {
    const since = marks.map(({ id, name }) => option(`born > mark(${id}) && live`, `since ${name ?? `mark ${id}`}`));
    const signature = JSON.stringify(marks.map(({ id, name }) => [id, name]));
    // An update would close the list while the user has it open.
    if (this.examples.firstChild && (signature === this.signature || document.activeElement === this.examples)) return;
    this.signature = signature;
    replace(this.examples, option("", "examples…"),
      since.length > 0 && h("optgroup", { label: "Allocated since a mark, live" }, ...since),
      h("optgroup", { label: "Examples" }, ...EXAMPLES.map(([description, filter]) => option(filter, description))),
      option("none", "no filter: all allocations"));
  }

  useExample() {
    const { value } = this.examples;
    this.examples.value = "";
    this.examples.blur();
    if (value) apply(value === "none" ? "" : value);
  }

  /** Shows the filter of the link. */
  update() {
    if (this.element.hidden === applies()) {
      this.element.hidden = !applies();
      replace(this.element, ...(applies() ? [this.field, this.examples, this.error] : []));
    }
    if (document.activeElement !== this.input && this.input.value !== state.filter) this.input.value = state.filter;
    if (!isFiltered()) this.showError("");
  }

  /** Shows why the filter is invalid; an empty text hides the error. */
  showError(/** @type {string} */ why) {
    setText(this.error, why);
    this.error.hidden = why === "";
    setProperties(this.input, { "aria-invalid": why ? "true" : null });
  }
}
