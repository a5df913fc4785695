// The help and the export menu: native dialogs, which handle focus and Escape correctly.

import { activeFilter, api, processParameters } from "./api.js";
import { choices } from "./choices.js";
import { byId, h, messageOf, replace } from "./dom.js";
import { KEYS, TERMS } from "./glossary.js";
import { asCounted, KINDS, unitOf } from "./kinds.js";
import { isOffline } from "./offline.js";
import { state } from "./state.js";
import { hasToken, save } from "./token.js";

function header(/** @type {string} */ title, /** @type {HTMLDialogElement} */ box) {
  return h("header", {}, h("h2", {}, title), h("button", { class: "small", onclick: () => box.close() }, "close"));
}

export function toggleHelp() {
  const box = byId("help");
  if (box.open) return box.close();
  const list = (/** @type {[string, string][]} */ rows) => h("dl", {}, ...rows.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]));
  replace(
    box,
    header("Help", box),
    h("h3", {}, "Keys"),
    h("dl", { class: "keys" }, ...KEYS.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
    !isOffline && h("h3", {}, "Which command?"),
    !isOffline && choices(),
    h("h3", {}, "Terms"),
    list(TERMS),
    h("h3", {}, "Kinds of memory"),
    list(KINDS.map(({ label, text }) => [label, asCounted(text)])),
    h("p", { class: "faint" }, "The address bar always contains a link to the current view. Units are powers of two: 1 KiB = 1,024 bytes. A figure with ~ is an estimate with an error below a tenth of it; a larger error is shown beside the figure (±, with 95 % confidence). Other figures are as exact as their kind. Hover over a number to see all of its digits."),
  );
  box.showModal();
}

/** The URL of an export, with the page's current settings that the format supports. */
function exportUrl(/** @type {import("./api.js").Format} */ format) {
  const settings = { direction: state.dir, kind: state.kind, ...(state.min === "0" || unitOf(state.kind) !== "bytes" ? {} : { threshold: state.min }), to: state.mark, ...processParameters(), ...(comparison().from ? {} : { filter: activeFilter() }), ...comparison() };
  const supported = Object.entries(settings).filter(([name, value]) => value && format.options.includes(name));
  return `${format.href.replace(/^\//, "")}?${new URLSearchParams(supported)}`;
}

/** The two moments that the open view compares; empty for other views. */
function comparison() {
  const { view, from, to } = state;
  return view === "diff" && from ? { from, to: to || "now" } : {};
}

/** A format: a link to the export, a description, and a note if the format cannot contain a comparison. */
function formatItem(/** @type {import("./api.js").Format} */ format) {
  const onlyLater = comparison().from && !format.options.includes("from");
  return h("li", {},
    h("a", { href: exportUrl(format), download: `memprof.${format.extension}`, onclick: download }, format.name),
    h("span", { class: "faint" }, `.${format.extension}`),
    h("span", {}, format.about, onlyLater && h("em", { class: "faint" }, " (only the later moment)")));
}

/** Downloads a link's file with a request that contains the token, if there is one. */
function download(/** @type {MouseEvent} */ event) {
  if (!hasToken()) return;
  event.preventDefault();
  const link = /** @type {HTMLAnchorElement} */ (event.currentTarget);
  save(link).catch((error) => link.after(h("em", { role: "alert" }, ` ${messageOf(error)}`)));
}

export async function openExports() {
  const box = byId("exports");
  const show = (/** @type {any[]} */ ...content) => replace(box, header("Save this profile", box), ...content);
  show(h("p", { class: "faint" }, "Loading…"));
  box.showModal();
  try {
    const formats = await api.exports();
    show(
      h("p", { class: "faint" }, `${comparison().from ? "Exports the difference shown here" : "Exports the current view"}, with its kind, direction and threshold if the format supports them.`),
      h("ul", { class: "formats" }, ...formats.map(formatItem)),
    );
  } catch (error) {
    show(h("p", { role: "alert" }, messageOf(error)));
  }
}
