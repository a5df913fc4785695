// Creates elements. Names come from profiled programs, so text is only set as text, never as HTML.

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
  set(element, properties);
  put(element, ...children);
  return element;
}

const OWN = new Set(["value", "checked", "disabled", "hidden", "textContent", "selected", "tabIndex"]);

/** Sets properties as {@link h} does. */
export function set(/** @type {any} */ element, /** @type {Record<string, any>} */ properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (OWN.has(name)) element[name] = value;
    else if (value === null || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Appends the children that are not null, undefined or false. */
export function put(/** @type {Element} */ element, /** @type {any[]} */ ...children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces an element's content. */
export function fill(/** @type {Element} */ element, /** @type {any[]} */ ...children) {
  element.replaceChildren();
  put(element, ...children);
}

/** Sets text only if it changed, to preserve a selection in it. */
export function say(/** @type {Element} */ element, /** @type {string} */ text) {
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

/** The message that a view shows instead of data. */
export function notice(/** @type {string} */ title, /** @type {string} */ text, /** @type {string} */ kind = "", /** @type {Node | null} */ more = null) {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, h("strong", {}, title), h("p", {}, text), more);
}

/** Debounces a function: calls it `ms` milliseconds after the last request. */
export function later(/** @type {() => void} */ call, /** @type {number} */ ms) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, ms);
  };
}
