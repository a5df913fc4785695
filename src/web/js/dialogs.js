// The help panel and the export menu: native dialogs, for correct handling of focus and Escape.

import { api, filterOf, whose } from "./api.js";
import { fill, h } from "./dom.js";
import { asCounted, KINDS, unitOf } from "./kinds.js";
import { state } from "./state.js";
import { hasToken, save } from "./token.js";
import { KEYS, TERMS } from "./glossary.js";

const dialog = (/** @type {string} */ id) => /** @type {HTMLDialogElement} */ (document.getElementById(id));

function head(/** @type {string} */ title, /** @type {HTMLDialogElement} */ box) {
  return h("header", {}, h("h2", {}, title), h("button", { class: "small", onclick: () => box.close() }, "close"));
}

export function toggleHelp() {
  const box = dialog("help");
  if (box.open) return box.close();
  const list = (/** @type {[string, string][]} */ rows) => h("dl", {}, ...rows.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]));
  fill(
    box,
    head("Help", box),
    h("h3", {}, "Keys"),
    h("dl", { class: "keys" }, ...KEYS.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
    h("h3", {}, "What this page shows"),
    list(TERMS),
    h("h3", {}, "Kinds of memory"),
    list(KINDS.map(({ label, text }) => [label, asCounted(text)])),
    h("p", { class: "faint" }, "The address bar always contains a link to the current view. Units are powers of two: 1 KiB = 1,024 bytes. A figure with ~ is an estimate; its error is less than a tenth of it, or stands beside it (±, with 95 % confidence). Other figures are as exact as their kind. Hover over a number to see all of its digits."),
  );
  box.showModal();
}

/** The URL of a format, with the page's current settings that the format supports. */
function address(/** @type {import("./api.js").Format} */ format) {
  const chosen = { direction: state.dir, kind: state.kind, ...(state.min === "0" || unitOf(state.kind) !== "bytes" ? {} : { threshold: state.min }), to: state.mark, ...whose(), ...(moments().from ? {} : { filter: filterOf() }), ...moments() };
  const known = Object.entries(chosen).filter(([name, value]) => value && format.options.includes(name));
  return `${format.href.replace(/^\//, "")}?${new URLSearchParams(known)}`;
}

/** The two moments that the open view compares; empty if it does not compare. */
function moments() {
  const { view, from, to } = state;
  return view === "diff" && from ? { from, to: to || "now" } : {};
}

/** A format: a link to its file, its description, and a note if it cannot export the comparison. */
function entry(/** @type {import("./api.js").Format} */ format) {
  const alone = moments().from && !format.options.includes("from");
  return h("li", {},
    h("a", { href: address(format), download: `memprof.${format.extension}`, onclick: download }, format.name),
    h("span", { class: "faint" }, `.${format.extension}`),
    h("span", {}, format.about, alone && h("em", { class: "faint" }, " (only the later moment)")));
}

/** A link cannot show a token. */
function download(/** @type {MouseEvent} */ event) {
  if (!hasToken()) return;
  event.preventDefault();
  const link = /** @type {HTMLAnchorElement} */ (event.currentTarget);
  save(link).catch((error) => link.after(h("em", { role: "alert" }, ` ${error.message}`)));
}

export async function openExports() {
  const box = dialog("exports");
  fill(box, head("Save this profile", box), h("p", { class: "faint" }, "loading…"));
  box.showModal();
  try {
    const formats = await api.exports();
    fill(
      box,
      head("Save this profile", box),
      h("p", { class: "faint" }, `${moments().from ? "Exports the difference shown here" : "Exports the current view"}, with its kind, direction and threshold if the format supports them.`),
      h("ul", { class: "formats" }, ...formats.map(entry)),
    );
  } catch (error) {
    fill(box, head("Save this profile", box), h("p", { role: "alert" }, error instanceof Error ? error.message : "failed"));
  }
}
