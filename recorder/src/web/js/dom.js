// Creates and updates elements. Texts come from peers, so text is set as text and never parsed as HTML.

/** The page's element with an id. @returns {any} */
export const byId = (/** @type {string} */ id) => document.getElementById(id);

/** Names that are properties of an element, not attributes. */
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected", "tabIndex", "textContent"]);

/**
 * Creates an element. `on…` properties are listeners; `class`, `role`, `aria-…` and the like are attributes.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Appends the children that are not null, undefined or false. */
function append(/** @type {Element} */ element, /** @type {any[]} */ children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces an element's content. */
export function replace(/** @type {Element} */ element, /** @type {any[]} */ ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Sets text only if it changed, to preserve a selection in it. */
export function setText(/** @type {Element} */ element, /** @type {string} */ text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The message that a view shows instead of data. */
export function notice(/** @type {string} */ title, /** @type {string} */ text, /** @type {string} */ kind = "", /** @type {Node | null} */ action = null) {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, h("strong", {}, title), h("p", {}, text), action);
}

/** A button. */
export function button(/** @type {string} */ text, /** @type {(event: Event) => void} */ click, /** @type {Record<string, any>} */ properties = {}) {
  return h("button", { type: "button", class: "small", onclick: click, ...properties }, text);
}

/** A button that copies a text. */
export function copyButton(/** @type {string} */ label, /** @type {() => string} */ text) {
  const copy = button(label, async () => {
    const copied = await copyText(text());
    copy.textContent = copied ? "Copied" : "Cannot copy";
    setTimeout(() => (copy.textContent = label), 1500);
  });
  return copy;
}

/** Copies a text. Without a secure context there is no clipboard API, but the old command. */
async function copyText(/** @type {string} */ text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = h("textarea", { value: text, class: "skip" });
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    return copied;
  }
}

/** The message of an error. */
export const messageOf = (/** @type {unknown} */ error) => (error instanceof Error ? error.message : String(error));

/** Whether the screen is narrow, as the style sheet defines it. */
export const isNarrow = () => matchMedia("(max-width: 700px)").matches;
