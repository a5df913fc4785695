// The row of controls above a view. The row is built once per view, so that input and focus are preserved.

import { hasSource, isCounted } from "./api.js";
import { byId, debounce, field, h, openMenu, replace, select, setProperties, setText } from "./dom.js";
import { FilterBox } from "./filter.js";
import { bytes, parseBytes } from "./format.js";
import { definition } from "./glossary.js";
import { groupOf, isHeapKind, KINDS, unitOf } from "./kinds.js";
import { isOffline, offlineKinds } from "./offline.js";
import { change, defaultOf, isDefault, state } from "./state.js";

/** The controls of each view, by setting. `focus` and `stacks` are states of a view. */
const CONTROLS = /** @type {Record<string, string[]>} */ ({
  overview: [],
  flame: ["shape", "dir", "kind", "merge", "inl", "py", "min", "q"],
  treemap: ["dir", "kind", "merge", "inl", "py", "min", "q"],
  tree: ["dir", "kind", "merge", "inl", "py", "min", "q"],
  functions: ["kind", "py", "q"],
  sandwich: ["kind", "py", "q"],
  focus: ["kind", "merge", "inl", "py", "min", "q"],
  files: ["q"],
  stacks: ["shape", "dir", "merge", "inl", "py", "q"],
  space: ["group", "q"],
  diff: ["shape", "dir", "kind", "merge", "inl", "py", "min", "q"],
  health: [],
  heap: [],
  allocations: ["aby"],
  processes: ["pby", "kind", "q"],
  growth: ["gby", "kind"],
});

/** The controls with a fixed list: [label, [[value, label]], explanation] by setting. */
const LISTS = /** @type {Record<string, [string, [string, string][], string]>} */ ({
  shape: ["Shape", [["icicle", "icicle (root on top)"], ["flame", "flame (root at the bottom)"]], "Direction in which the graph grows"],
  dir: ["Direction", [["callees", "callees: from main down"], ["callers", "callers: from the allocator up"]], "Callees: from main down to the functions that it calls. Callers: from the functions that touched the memory up to their callers."],
  merge: ["Merge by", [["function", "function"], ["site", "call site"]], "Function: one frame per function. Call site: one frame per call in the source code."],
  inl: ["Inlined", [["", "separate frames"], ["0", "with the caller"]], "Shows functions that the compiler inlined as frames of their own, if debug information names them"],
  py: ["Interpreted", [["", "source functions (native folded)"], ["all", "with native functions"], ["native", "native functions only"]], "Only functions of the Python or Ruby program, among the native functions (without the interpreter’s evaluators), or only native functions. Key: f"],
  group: ["Group by", [["purpose", "purpose"], ["file", "file or name"], ["none", "each mapping"]], "What is summed up in a row"],
  gby: ["Rows", [["function", "function"], ["stack", "stack"]], "What is summed up in a row"],
  aby: ["Groups", [["function", "function"], ["stack", "stack"], ["thread", "thread"], ["size", "size"], ["lifetime", "lifetime"]], "The property by which allocations are grouped. By function: an allocation is in the row of each function on its stack"],
  pby: ["List", [["process", "processes"], ["ended", "ended processes"], ["group", "control groups"]], "One row per process that runs, per process that has ended in the last ten minutes, or per control group"],
  min: ["Threshold", [["0", "all"], ["65536", "≥ 64 KiB"], ["262144", "≥ 256 KiB"], ["1048576", "≥ 1 MiB"], ["16777216", "≥ 16 MiB"]], "Smaller frames are aggregated as “below threshold”"],
});

/** Texts of chips that say more than the option's own text does: by setting, with what stands before the text. */
const CHIPS = /** @type {Record<string, string>} */ ({ merge: "by ", inl: "inlined: ", aby: "by ", gby: "by ", group: "by " });
/** Settings without which a position in the graph has no meaning: another value resets it. */
const RESETS = /** @type {Record<string, any>} */ ({ gby: { sort: "" }, aby: { sort: "", page: "0" }, pby: { sort: "", page: "0" }, dir: { zoom: "", sel: "" }, merge: { zoom: "", sel: "" }, inl: { zoom: "", sel: "" }, py: { zoom: "", sel: "" }, kind: { zoom: "", sel: "" } });

const filter = new FilterBox();

/** Shows why the filter is invalid. */
export const showFilterError = (/** @type {string} */ why) => filter.showError(why);

/** Offers filters for allocations since these marks. */
export const offerMarks = (/** @type {import("./api.js").Mark[]} */ marks) => filter.offer(marks);

/** The controls of the open view. The page cache is a list, or the stacks of one file; the sandwich is a list, or one function. */
function currentControls() {
  const view = state.view === "sandwich" && state.path ? "focus" : state.view === "files" && state.file ? "stacks" : state.view;
  const controls = CONTROLS[view] ?? [];
  // An offline report contains trees with one set of options only.
  return controls.filter((name) => (name !== "py" || hasSource() || state.py) && (!isOffline || !["merge", "inl", "py", "min"].includes(name)));
}

/** Selects the next match of the search (1) or the previous one (-1). */
let stepTo = (/** @type {number} */ _by) => {};

/** Shows the view's controls with the values of the link. */
export function showControls(step = stepTo) {
  stepTo = step;
  const names = currentControls();
  const options = names.filter((name) => name !== "q");
  const answer = names.includes("kind") && h("p", { class: "answer", id: "answer" });
  replace(byId("controls"), ...(options.length > 0 ? optionsMenu(options) : []), answer, filter.element, names.includes("q") && searchBox());
  byId("controls").classList.toggle("none", names.length === 0);
  filter.update();
  showAnswer();
  showChips();
}

/** The button that opens the options, the chips of those that differ from the default, and the menu with all of them. */
function optionsMenu(/** @type {string[]} */ names) {
  const reset = h("button", { class: "small", onclick: () => change(Object.assign({}, ...names.map((name) => ({ ...RESETS[name], [name]: defaultOf(name) }))), true) }, "all as by default");
  const menu = h("div", { class: "menu fields", id: "option-menu", popover: "auto", role: "group", "aria-label": "Options of this view" }, ...names.map(control), reset);
  const button = h("button", { class: "small", id: "options", "aria-haspopup": "true", onclick: () => openMenu(menu, button) }, "Options ▾");
  return [button, h("span", { class: "chips", id: "chips" }), menu];
}

/** Shows native functions among those of an interpreted program, or folds them. */
export const toggleNative = () => hasSource() && currentControls().includes("py") && change({ py: state.py ? "" : "all", ...RESETS.py }, true);

/** Shows a chip for each option that differs from the default; a click opens the menu at it. */
function showChips() {
  const box = byId("chips");
  if (!box) return;
  const fields = /** @type {any[]} */ ([...byId("option-menu").querySelectorAll("[data-name]")]).filter((select) => !isDefault(select.dataset.name) && !select.closest(".field").hidden);
  const folded = hasSource() && state.py === "" && byId("option-menu").querySelector("[data-name=py]");
  const texts = fields.map((select) => `${CHIPS[select.dataset.name] ?? ""}${(select.selectedOptions[0]?.textContent ?? select.value).split(/[:(]/)[0].trim()}`);
  const signature = `${Boolean(folded)}\n${texts.join("\n")}`;
  if (box.dataset.texts === signature) return;
  box.dataset.texts = signature;
  const unfold = folded && h("button", { class: "small option", title: "Native functions below those of the program are folded: show them (f)", onclick: toggleNative }, "native folded");
  replace(box, unfold, ...fields.map((select, i) => {
    const open = () => {
      openMenu(byId("option-menu"), button);
      select.focus();
    };
    const button = h("button", { class: "small option", title: `${select.getAttribute("aria-label")}: ${texts[i]}. Opens the options.`, onclick: open }, texts[i], h("span", { "aria-hidden": "true" }, " ▾"));
    return button;
  }));
}

/** Shows the question that the selected kind answers. */
function showAnswer() {
  const element = byId("answer");
  const { answers, more } = groupOf(state.kind);
  if (!element || element.dataset.answers === answers) return;
  setText(element, `${answers} ${more}`);
  setProperties(element, { "data-answers": answers, title: `${answers} ${more}`, "data-usual": !isHeapKind(state.kind) });
}

/** Updates the values of the existing controls after a change of the link. */
export function updateControls() {
  for (const element of /** @type {NodeListOf<any>} */ (byId("controls").querySelectorAll("[data-name]"))) {
    const value = /** @type {any} */ (state)[element.dataset.name];
    if (document.activeElement !== element && element.value !== value) element.value = value;
    if (element.dataset.name === "kind") setProperties(element, { title: definition(state.kind) });
    if (element.dataset.name === "min") element.closest(".field").hidden = !hasSizes();
  }
  filter.update();
  showAnswer();
  showChips();
}

/** @returns {Element} */
function control(/** @type {string} */ name) {
  if (name === "kind") {
    const offered = KINDS.filter((kind) => isOffline ? offlineKinds.includes(kind.name) : kind.name === state.kind || isCounted(kind));
    const box = select("Kind of memory", [], state.kind, (kind) => change({ kind, ...RESETS.kind }), definition(state.kind));
    for (const group of new Set(offered.map(({ group }) => group))) {
      const kinds = offered.filter((kind) => kind.group === group);
      box.append(h("optgroup", { label: groupOf(kinds[0].name).label }, ...kinds.map(({ name, label }) => h("option", { value: name, selected: name === state.kind }, label))));
    }
    box.dataset.name = "kind";
    return field("Memory", box);
  }
  const [label, values, title] = LISTS[name];
  const value = /** @type {any} */ (state)[name];
  const known = values.some(([option]) => option === value);
  const custom = name === "min" && !known && Number.isFinite(parseBytes(`${value}B`));
  const options = custom ? [...values, /** @type {[string, string]} */ ([value, `≥ ${bytes(Number(value))}`])] : values;
  const box = select(label, options, value, (selected) => change({ [name]: selected, ...RESETS[name] }, true), title);
  box.dataset.name = name;
  const labelled = field(label, box, title);
  labelled.hidden = name === "min" && !hasSizes();
  return labelled;
}

/** Whether the kind's figures are sizes. Thresholds are sizes: they do not apply to numbers of objects. */
function hasSizes() {
  return unitOf(state.kind) === "bytes";
}

/** Searches for a text. This deselects the function, except in the sandwich, where the function's own stacks are searched. */
function search(/** @type {string} */ q) {
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
    oninput: debounce(() => search(input.value), 150),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter") {
        if (input.value !== state.q) search(input.value);
        stepTo(event.shiftKey ? -1 : 1);
      }
      if (event.key !== "Escape") return;
      input.value = "";
      search("");
      event.stopPropagation();
    },
  });
  input.dataset.name = "q";
  return h("div", { class: "field search" }, input);
}
