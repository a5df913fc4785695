// The row of controls above a view. It is built once per view, so that input and focus are preserved.

import { counts, hasSource } from "./api.js";
import { field, fill, h, later, select, set } from "./dom.js";
import { FilterBox } from "./filter.js";
import { bytes, parseBytes } from "./format.js";
import { groupOf, isOfHeap, KINDS, unitOf } from "./kinds.js";
import { isSaved, savedKinds } from "./offline.js";
import { change, state } from "./state.js";
import { meaning } from "./glossary.js";

const box = () => /** @type {HTMLElement} */ (document.getElementById("controls"));

/** The controls of each view. */
const OFFERS = /** @type {Record<string, string[]>} */ ({
  flame: ["shape", "dir", "kind", "merge", "inl", "py", "min", "q"],
  treemap: ["dir", "kind", "merge", "inl", "py", "min", "q"],
  tree: ["dir", "kind", "merge", "inl", "py", "min", "q"],
  functions: ["kind", "py", "q"],
  sandwich: ["kind", "py", "q"],
  focus: ["kind", "merge", "inl", "py", "min", "q"],
  files: ["q"],
  stacks: ["shape", "dir", "merge", "inl", "py", "q"],
  space: ["q"],
  diff: ["shape", "dir", "kind", "merge", "inl", "py", "min", "q"],
  health: [],
  heap: [],
  allocations: ["aby"],
  processes: ["pby", "kind", "q"],
});

const CHOICES = /** @type {Record<string, [string, [string, string][], string]>} */ ({
  shape: ["Shape", [["icicle", "icicle (root on top)"], ["flame", "flame (root at the bottom)"]], "Direction in which the graph grows"],
  dir: ["Direction", [["callees", "callees: from main down"], ["callers", "callers: from the allocator up"]], "Callees: functions and what they call, starting with main. Callers: the functions that touched the memory, and who called them."],
  merge: ["Merge by", [["function", "function"], ["site", "call site"]], "Function: one frame per function. Call site: one frame for each place in the code that makes the call."],
  inl: ["Inlined", [["", "with their caller"], ["1", "separate frames"]], "Functions that the compiler inlined into their callers are separate frames, if debug information names them"],
  py: ["Interpreted", [["", "with native functions"], ["source", "its functions alone"], ["native", "native functions alone"]], "Functions of the Python or Ruby program among the native ones (without the interpreter’s evaluators), those of the program alone, or native ones alone"],
  aby: ["Groups", [["function", "function"], ["stack", "stack"], ["thread", "thread"], ["size", "size"], ["lifetime", "lifetime"]], "What the allocations of a row have in common. By function: an allocation is in the row of each function on its stack"],
  pby: ["List", [["process", "processes"], ["group", "control groups"]], "Each process, or the processes of each control group together"],
  min: ["Threshold", [["0", "all"], ["65536", "≥ 64 KiB"], ["262144", "≥ 256 KiB"], ["1048576", "≥ 1 MiB"], ["16777216", "≥ 16 MiB"]], "Smaller frames are aggregated as “below threshold”"],
});

const filter = new FilterBox();

/** Says why the filter cannot be used. */
export const showFilterError = (/** @type {string} */ why) => filter.say(why);

/** Offers filters by these marks. */
export const offerMarks = (/** @type {import("./api.js").Mark[]} */ marks) => filter.offer(marks);

/** The controls of the open view. The page cache view is a list, or the stacks of one file; the sandwich a list, or a function. */
function offered() {
  const focus = state.view === "sandwich" && state.path;
  const offers = focus ? OFFERS.focus : (OFFERS[state.view === "files" && state.file ? "stacks" : state.view] ?? []);
  // A report in a file has trees of one form only.
  return offers.filter((name) => (name !== "py" || hasSource() || state.py) && (!isSaved || !["merge", "inl", "py", "min"].includes(name)));
}

/** Selects the next match of the search (1) or the previous one (-1). */
let stepTo = (/** @type {number} */ _by) => {};

/** Shows the view's controls with the values of the link. */
export function showControls(step = stepTo) {
  stepTo = step;
  const offers = offered();
  const options = offers.filter((name) => name !== "q").map((name) => control(name));
  // Collapsed on narrow screens.
  const fold = h("details", { class: "options", open: !matchMedia("(max-width: 700px)").matches }, h("summary", {}, "Options"), h("div", { class: "fields" }, ...options));
  const answer = offers.includes("kind") && h("p", { class: "answer", id: "answer" });
  fill(box(), options.length > 0 && fold, offers.includes("q") && searchBox(), filter.element, answer);
  filter.update();
  showAnswer();
}

/** Says which question the chosen kind answers. */
function showAnswer() {
  const element = document.getElementById("answer");
  const { answers, more } = groupOf(state.kind);
  if (!element || element.dataset.answers === answers) return;
  fill(element, answers, h("span", {}, ` ${more}`));
  // Narrow screens have the usual answer beside the selector alone, which is folded there.
  set(element, { "data-answers": answers, "data-usual": !isOfHeap(state.kind) });
}

/** Updates the values of the existing controls after the link changed by other means. */
export function updateControls() {
  for (const element of /** @type {NodeListOf<any>} */ (box().querySelectorAll("[data-name]"))) {
    const value = /** @type {any} */ (state)[element.dataset.name];
    if (document.activeElement !== element && element.value !== value) element.value = value;
    if (element.dataset.name === "kind") set(element, { title: meaning(state.kind) });
    if (element.dataset.name === "min") element.closest(".field").hidden = !hasSizes();
  }
  filter.update();
  showAnswer();
}

/** @returns {Element} */
function control(/** @type {string} */ name) {
  if (name === "kind") {
    const offered = KINDS.filter((kind) => isSaved ? savedKinds.includes(kind.name) : kind.name === state.kind || counts(kind));
    const box = select("Kind of memory", [], state.kind, (kind) => change({ kind, zoom: "", sel: "" }), meaning(state.kind));
    for (const group of new Set(offered.map(({ group }) => group))) {
      const kinds = offered.filter((kind) => kind.group === group);
      box.append(h("optgroup", { label: groupOf(kinds[0].name).label }, ...kinds.map(({ name, label }) => h("option", { value: name, selected: name === state.kind }, label))));
    }
    box.dataset.name = "kind";
    return field("Memory", box);
  }
  const [label, choices, title] = CHOICES[name];
  const value = /** @type {any} */ (state)[name];
  const known = choices.some(([option]) => option === value);
  const custom = name === "min" && !known && Number.isFinite(parseBytes(`${value}B`));
  const options = custom ? [...choices, /** @type {[string, string]} */ ([value, `≥ ${bytes(Number(value))}`])] : choices;
  const reset = name === "aby" || name === "pby" ? { sort: "", page: "0" } : name === "dir" || name === "merge" || name === "inl" || name === "py" ? { zoom: "", sel: "" } : {};
  const box = select(label, options, value, (chosen) => change({ [name]: chosen, ...reset }, true), title);
  box.dataset.name = name;
  const made = field(label, box, title);
  made.hidden = name === "min" && !hasSizes();
  return made;
}

/** Whether the kind's figures are sizes. Thresholds are: they do not apply to numbers of objects, and are not offered there. */
function hasSizes() {
  return unitOf(state.kind) === "bytes";
}

/** A search for a text ends the choice of a function, except where that function's own stacks are searched. */
function seek(/** @type {string} */ q) {
  change({ q, page: "0", ...(state.view === "sandwich" ? {} : { fn: "", path: "" }) });
}

function searchBox() {
  const input = h("input", {
    type: "search",
    id: "search",
    placeholder: "search  /",
    "aria-label": "Search names; * matches any characters",
    title: "Part of a function or file name, or a pattern with * for the whole name. Key: /",
    autocomplete: "off",
    spellcheck: "false",
    value: state.q,
    oninput: later(() => seek(input.value), 150),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter") {
        if (input.value !== state.q) seek(input.value);
        stepTo(event.shiftKey ? -1 : 1);
      }
      if (event.key !== "Escape") return;
      input.value = "";
      seek("");
      event.stopPropagation();
    },
  });
  input.dataset.name = "q";
  return h("div", { class: "field search" }, input);
}
