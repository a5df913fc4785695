// Creates and updates elements. Names come from profiled programs, so text is set as text and never parsed as HTML.

/** The page's element with an id. @returns {any} */
export function byId(/** @type {string} */ id) {
  return document.getElementById(id);
}

/**
 * Creates an element. `on…` properties are listeners; `class`, `role`, `aria-…` and the like are attributes;
 * `value`, `checked`, `disabled`, `hidden` and `textContent` are properties.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  setProperties(element, properties);
  append(element, ...children);
  return element;
}

/** Names that are properties of an element, not attributes. */
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "textContent", "selected", "tabIndex"]);

/** Sets properties, attributes and listeners as {@link h} does. */
export function setProperties(/** @type {any} */ element, /** @type {Record<string, any>} */ properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (value === null || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Appends the children that are not null, undefined or false. */
function append(/** @type {Element} */ element, /** @type {any[]} */ ...children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces an element's content. */
export function replace(/** @type {Element} */ element, /** @type {any[]} */ ...children) {
  element.replaceChildren();
  append(element, ...children);
}

/** Replaces an element's content with these elements, unless it already contains the first one. */
export function display(/** @type {Element} */ element, /** @type {Element[]} */ ...children) {
  if (!element.contains(children[0])) replace(element, ...children);
}

/** Sets text only if it changed, to preserve a selection in it. */
export function setText(/** @type {Element} */ element, /** @type {string} */ text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A `select` with options of [value, label]. */
export function select(/** @type {string} */ label, /** @type {[string, string][]} */ options, /** @type {string} */ value, /** @type {(value: string) => void} */ change, /** @type {string} */ title = "") {
  const box = h("select", { "aria-label": label, title, onchange: () => change(box.value) });
  for (const [name, text] of options) box.append(h("option", { value: name, selected: name === value }, text));
  return box;
}

/** A labelled control. */
export function field(/** @type {string} */ label, /** @type {Element} */ control, /** @type {string} */ title = "") {
  return h("label", { class: "field", title }, h("span", {}, label), control);
}

/** Opens a menu, which the browser closes at a click elsewhere or Escape, below an element and within the window. */
export function openMenu(/** @type {any} */ menu, /** @type {Element} */ below) {
  if (!menu.matches(":popover-open")) menu.showPopover();
  const { left, right, bottom } = below.getBoundingClientRect();
  const { width } = menu.getBoundingClientRect();
  const from = left + width > innerWidth - 8 ? right - width : left;
  menu.style.left = `${Math.max(8, Math.min(from, innerWidth - 8 - width))}px`;
  menu.style.top = `${bottom + 4}px`;
}

/** Whether a menu is open. */
export const isMenuOpen = () => document.querySelector(":popover-open") !== null;

/** The message that a view shows instead of data. */
export function notice(/** @type {string} */ title, /** @type {string} */ text, /** @type {string} */ kind = "", /** @type {Node | null} */ action = null) {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, h("strong", {}, title), h("p", {}, text), action);
}

/** A card: a heading, a description and its content. `properties` are set on the card. */
export function card(/** @type {string} */ title, /** @type {string} */ about, /** @type {any[]} */ content, /** @type {Record<string, any>} */ properties = {}) {
  return h("section", { class: "card", ...properties }, h("h2", {}, title), about && h("p", { class: "faint" }, about), ...content);
}

/** Shows a message across the page. */
export function showBanner(/** @type {string} */ title, /** @type {string} */ text, /** @type {Node | null} */ action = null) {
  const banner = byId("banner");
  replace(banner, h("strong", {}, `${title} `), text, action);
  banner.hidden = false;
}

export function hideBanner() {
  byId("banner").hidden = true;
}

/** Whether the screen is narrow, as the style sheets define it. */
export function isNarrow() {
  return matchMedia("(max-width: 700px)").matches;
}

/** The message of an error. */
export function messageOf(/** @type {unknown} */ error) {
  return error instanceof Error ? error.message : String(error);
}

/** Debounces a function: calls it `ms` milliseconds after the last request. */
export function debounce(/** @type {() => void} */ call, /** @type {number} */ ms) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, ms);
  };
}
