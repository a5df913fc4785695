// Filters: the search box that understands values, chips of what is set, and the form with everything.

import { button, byId, h, isNarrow, replace } from "./dom.js";
import { day, exactClock, visible } from "./format.js";
import { CATEGORIES, clearFilters, FILTERS, isFiltered, KINDS, LEVELS, setState, state } from "./state.js";

/** @typedef {import("./state.js").Key} Key */

/** What a chip says before the value. @type {Record<string, string>} */
const NAMES = { category: "category", kinds: "kind", incoming: "direction", initiator: "opened by", address: "address", host: "host", peer: "peer", connection: "connection", hash: "hash", error: "errors", levels: "level", query: "log text", from: "from", to: "to" };

/** Texts of values. @type {Record<string, Record<string, string>>} */
const VALUES = {
  incoming: { true: "received", false: "sent" },
  initiator: { local: "the node", remote: "the peer" },
  error: { true: "only with errors", false: "only without" },
};

const ADDRESS = /^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]+\]):\d{1,5}$/i;
const HOST = /^(\d{1,3}(\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f:.]*)$/i;
const PEER = /^id[1-9A-HJ-NP-Za-km-z]{28}$/;
/** The beginning of a base58 hash of a block or an operation: with a digit or a capital in it, which words do not have. */
const HASH = /^(B[1-9A-HJ-NP-Za-km-z]{5,50}|o[1-9A-HJ-NP-Za-km-z]{5,50})$/;

/** The filter that a text of the search box means. @returns {Partial<Record<Key, string>>} */
export function meaningOf(/** @type {string} */ typed) {
  const text = typed.trim();
  const lower = text.toLowerCase();
  if (!text) return {};
  if (ADDRESS.test(text)) return { address: lower, host: "" };
  if (HOST.test(text)) return { host: lower, address: "" };
  if (PEER.test(text)) return { peer: text };
  if (HASH.test(text) && /[0-9A-Z]/.test(text.slice(1))) return { hash: text };
  const kind = lower.replaceAll(" ", "_");
  if (KINDS.includes(kind)) return { kinds: kind };
  const level = LEVELS.find((level) => level.toLowerCase() === lower);
  if (level) return { levels: level };
  return { query: text };
}

/** Filters, and shows the rows to which the filter applies: messages or logs. Those of both stay one click away. */
export function addFilter(/** @type {Partial<Record<Key, string>>} */ changes) {
  const isOfLogs = "query" in changes || "levels" in changes;
  const isOfConnections = state.view === "connections" && ("host" in changes || "peer" in changes);
  setState({ ...changes, view: isOfConnections ? state.view : isOfLogs ? "logs" : "messages", row: "" });
}

/** A time as a value of an input, in local time. */
const inputTime = (/** @type {string} */ ms) => (ms ? `${day(Number(ms))}T${exactClock(Number(ms))}` : "");

function valueText(/** @type {Key} */ key) {
  const value = state[key];
  if (key === "from" || key === "to") return inputTime(value).replace("T", " ");
  return VALUES[key]?.[value] ?? visible(value.replaceAll(",", ", "), 60);
}

/** Shows what is set, each with a button that removes it. */
export function drawChips() {
  const chips = FILTERS.filter((key) => state[key]).map((key) => {
    const text = `${NAMES[key]} ${valueText(key)}`;
    return button(`${text} ×`, () => setState({ [key]: "" }), { class: "option", "aria-label": `Remove the filter: ${text}` });
  });
  replace(byId("chips"), ...chips, chips.length > 1 && button("Clear all", clearFilters));
}

/** Prepares the search box and the form. */
export function startFilters() {
  const search = byId("search");
  search.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") search.blur();
    if (event.key !== "Enter" || event.isComposing) return;
    const meaning = meaningOf(search.value);
    if (Object.keys(meaning).length) addFilter(meaning);
    search.value = "";
  });
  const form = byId("filters");
  form.addEventListener("beforetoggle", (/** @type {any} */ event) => {
    if (event.newState !== "open") return;
    fillForm(form);
    // Below the button, where there is room for it.
    const { bottom } = byId("filter-button").getBoundingClientRect();
    form.style.top = isNarrow() ? "" : `${bottom + 4}px`;
    form.style.maxHeight = isNarrow() ? "" : `${innerHeight - bottom - 16}px`;
  });
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    form.hidePopover();
    setState(readForm(form));
  });
}

function fillForm(/** @type {HTMLFormElement} */ form) {
  const text = (/** @type {Key} */ key, /** @type {string} */ label, placeholder = "") => field(label, h("input", { name: key, value: state[key], placeholder, autocomplete: "off", spellcheck: "false" }));
  const time = (/** @type {Key} */ key, /** @type {string} */ label) => field(label, h("input", { name: key, type: "datetime-local", step: "0.001", value: inputTime(state[key]) }));
  const groups = [
    h("div", { class: "columns" },
      choice("incoming", "Direction", [["", "both"], ["true", "received"], ["false", "sent"]]),
      choice("initiator", "Connection opened by", [["", "either"], ["local", "the node"], ["remote", "the peer"]]),
      choice("category", "Category", [["", "all"], ...CATEGORIES.map((name) => /** @type {[string, string]} */ ([name, name]))]),
      choice("error", "Messages", [["", "all"], ["true", "only with errors"], ["false", "only without errors"]]),
      text("host", "Peer's host", "203.0.113.7"),
      text("address", "Peer's address and port", "203.0.113.7:9732"),
      text("peer", "Peer's id", "id…"),
      text("hash", "Hash begins with", "B… or o…"),
      time("from", "From"),
      time("to", "To"),
      text("query", "Log text", "+required -excluded \"a phrase\"")),
    boxes("levels", "Levels of logs", LEVELS),
    boxes("kinds", "Kinds of messages", KINDS),
  ];
  const actions = h("p", { class: "actions" }, h("button", { class: "primary" }, "Apply"), button("Clear all", () => {
    form.hidePopover();
    clearFilters();
  }, { class: "", disabled: !isFiltered() }), button("Cancel", () => form.hidePopover(), { class: "" }));
  replace(form, ...groups, actions);
}

const field = (/** @type {string} */ label, /** @type {Element} */ control) => h("label", { class: "field" }, h("span", {}, label), control);

function choice(/** @type {Key} */ key, /** @type {string} */ label, /** @type {[string, string][]} */ options) {
  return field(label, h("select", { name: key }, ...options.map(([value, text]) => h("option", { value, selected: value === state[key] }, text))));
}

function boxes(/** @type {Key} */ key, /** @type {string} */ label, /** @type {string[]} */ values) {
  const chosen = state[key].split(",");
  return h("fieldset", {}, h("legend", {}, label), ...values.map((value) => h("label", {}, h("input", { type: "checkbox", name: key, value, checked: chosen.includes(value) }), value)));
}

/** @returns {Partial<Record<Key, string>>} */
function readForm(/** @type {HTMLFormElement} */ form) {
  const data = new FormData(form);
  const times = ["from", "to"];
  const read = (/** @type {string} */ key) => {
    const values = data.getAll(key).map(String);
    if (!times.includes(key)) return values.map((value) => value.trim()).join(",");
    const ms = new Date(values[0] ?? "").getTime();
    return Number.isNaN(ms) ? "" : String(ms);
  };
  // The connection is a number that nobody types.
  return Object.fromEntries(FILTERS.filter((key) => key !== "connection").map((key) => [key, read(key)]));
}
