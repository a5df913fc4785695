// Bytes in hexadecimal with their characters, and JSON as a tree.

import { button, h } from "./dom.js";
import { number, visible } from "./format.js";
import { filterValue } from "./list.js";

/** Bytes that are shown at first, and with each further click. */
const FIRST_BYTES = 2 << 10;
const MORE_BYTES = 64 << 10;
/** Elements of an array that are shown at first, and with each further click. */
const ELEMENTS = 50;
/** Characters of a text that are shown at first. */
const CHARACTERS = 1000;
/** Levels of the tree that are open at first. */
const OPEN_LEVELS = 3;

/** Hashes of blocks and operations, which are a filter. */
const HASH = /^(B[0-9A-Za-z]{50}|o[0-9A-Za-z]{50})$/;

/** Lines of 16 bytes: offset, hexadecimal digits, characters. */
export function hexLines(/** @type {string} */ digits, /** @type {number} */ from, /** @type {number} */ to, columns = 16) {
  const lines = [];
  for (let at = from; at < to; at += columns) {
    const bytes = digits.slice(2 * at, 2 * Math.min(at + columns, to)).match(/../g) ?? [];
    const text = bytes.map((byte) => parseInt(byte, 16)).map((code) => (code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : "."));
    const half = columns / 2;
    const halves = [bytes.slice(0, half), bytes.slice(half)].map((part) => part.join(" ").padEnd(3 * half - 1));
    lines.push(`${at.toString(16).padStart(6, "0")}  ${halves.join("  ")}  ${text.join("")}`);
  }
  return lines.join("\n");
}

/** Bytes, given as hexadecimal digits, of which the first are shown. */
export function hexView(/** @type {string} */ digits, /** @type {number} */ columns, /** @type {string} */ label) {
  const length = digits.length / 2;
  let shown = Math.min(length, FIRST_BYTES);
  const box = h("pre", { class: "hex", tabIndex: 0, role: "region", "aria-label": label }, hexLines(digits, 0, shown, columns));
  if (shown === length) return box;
  const more = button("", () => {
    const next = Math.min(length, shown + MORE_BYTES);
    box.append(`\n${hexLines(digits, shown, next, columns)}`);
    shown = next;
    rename();
  });
  const rename = () => {
    more.textContent = `Show more of ${number(length)} bytes (${number(shown)} are shown)`;
    more.hidden = shown === length;
  };
  rename();
  return h("div", {}, box, more);
}

/** A JSON value as a tree. */
export function tree(/** @type {any} */ value, level = 0) {
  if (typeof value === "string") return textNode(value);
  if (value === null || typeof value !== "object") return h("span", { class: "scalar" }, String(value));
  const isArray = Array.isArray(value);
  const entries = Object.entries(value);
  if (!entries.length) return h("span", { class: "scalar" }, isArray ? "[ ]" : "{ }");
  const summary = isArray ? `[ ${number(entries.length)} ]` : `{ ${entries.slice(0, 4).map(([name]) => visible(name, 40)).join(", ")}${entries.length > 4 ? ", …" : ""} }`;
  const list = h("ul", {});
  const node = h("details", { class: "node", open: level < OPEN_LEVELS && (!isArray || entries.length <= ELEMENTS) }, h("summary", {}, summary), list);
  // The elements of closed nodes are made when they are opened.
  const fill = () => node.open && !list.childElementCount && addEntries(list, entries, 0, level + 1);
  node.addEventListener("toggle", fill);
  fill();
  return node;
}

function addEntries(/** @type {Element} */ list, /** @type {[string, any][]} */ entries, /** @type {number} */ from, /** @type {number} */ level) {
  const part = entries.slice(from, from + ELEMENTS);
  for (const [name, value] of part) list.append(h("li", {}, h("span", { class: "name" }, visible(name, 80), ": "), tree(value, level)));
  const rest = entries.length - from - part.length;
  if (!rest) return;
  const item = h("li", {}, button(`${number(rest)} more`, () => {
    item.remove();
    addEntries(list, entries, from + ELEMENTS, level);
  }));
  list.append(item);
}

function textNode(/** @type {string} */ value) {
  if (HASH.test(value)) return filterValue("hash", value);
  const text = h("span", { class: "text" }, `"${visible(value, CHARACTERS)}"`);
  if (value.length <= CHARACTERS) return text;
  const all = button(`all ${number(value.length)} characters`, () => {
    text.textContent = `"${visible(value)}"`;
    all.remove();
  });
  return h("span", {}, text, " ", all);
}
