// The source text of a function, each line with the bytes of the stacks that go through it.

import { api } from "./api.js";
import { h, messageOf, replace, setProperties } from "./dom.js";
import { baseName, estimate, exactWithError } from "./format.js";
import { fileAndLine, label } from "./glossary.js";

/** @typedef {import("./api.js").SourceReply} SourceReply */
/** @typedef {{ fn: string, path: string, kind: string, mark: string, line: number | undefined, unit: import("./kinds.js").Unit, report: number | undefined }} Wanted */

/** The panel with the source text of one function at a time. */
export class SourcePanel {
  constructor() {
    // It scrolls, so that the keyboard must reach it.
    this.element = h("section", { class: "source", "aria-label": "Source", tabIndex: 0, hidden: true });
    /** The request whose reply is shown or being fetched. */
    this.shown = "";
    /** The function whose line the panel last scrolled to. */
    this.scrolledTo = "";
  }

  hide() {
    this.element.hidden = true;
    this.shown = this.scrolledTo = "";
  }

  /** Shows the source of a function. The text stays while a newer report's is fetched. */
  async show(/** @type {Wanted} */ wanted) {
    const key = JSON.stringify(wanted);
    if (this.shown === key) return;
    this.shown = key;
    const { fn, path, kind, mark } = wanted;
    const of = JSON.stringify([fn, path]);
    if (this.element.hidden || this.scrolledTo !== of) replace(this.element, h("p", { class: "note", role: "status" }, "Reading the source…"));
    setProperties(this.element, { hidden: false, "aria-label": `Source of ${fn}` });
    let content;
    try {
      content = this.content(await api.source({ function: fn, path, kind, mark }), wanted);
    } catch (error) {
      content = [h("p", { class: "note", role: "status" }, `No source: ${messageOf(error)}`)];
    }
    // The user may have selected another function meanwhile.
    if (this.shown !== key) return;
    const top = this.element.scrollTop;
    replace(this.element, ...content);
    if (this.scrolledTo === of) this.element.scrollTop = top;
    else this.element.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
    this.scrolledTo = of;
  }

  /** @returns {HTMLElement[]} */
  content(/** @type {SourceReply} */ { file, function: [first, last], lines, text, no_text }, /** @type {Wanted} */ { line, kind, unit }) {
    // The line of the frame is that of a call, or where the function begins.
    const inside = lines.filter((row) => row.line >= first && row.line <= last);
    const main = inside.find((row) => row.line === line) ?? inside.reduce((most, row) => (row.total > most.total ? row : most));
    const bytes = new Map(lines.map((row) => [row.line, row]));
    const largest = Math.max(1, ...lines.map((row) => row.total));
    const modified = text?.modified ? `, as the file is now (modified ${new Date(text.modified).toLocaleString()})` : "";
    const about = no_text ? `${file}: no text, because ${no_text}.` : `${file}${modified}`;
    const numbers = text ? text.lines.map((_, index) => text.first + index) : lines.map((row) => row.line);
    const rows = numbers.map((at, index) => {
      const row = bytes.get(at);
      const share = row ? `${(100 * row.total) / largest}%` : "0";
      const title = row && `${exactWithError(row.total, row.total_error, unit)} of ${label(kind)} in stacks through this line, ${exactWithError(row.self, row.self_error, unit)} in the line itself`;
      const element = h("tr", { "data-line": at, "data-bytes": row?.total, "aria-current": at === main.line ? "true" : undefined, title },
        h("td", { class: "num amount" }, row ? estimate(row.total, row.total_error, unit) : ""),
        h("td", { class: "num faint" }, String(at)),
        h("td", {}, text ? text.lines[index] : fileAndLine(baseName(file), at)));
      // The page's security policy forbids a style attribute.
      element.style.setProperty("--share", share);
      return element;
    });
    return [h("p", { class: "note" }, about), h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "num", scope: "col" }, label(kind)), h("th", { class: "num", scope: "col" }, "Line"), h("th", { scope: "col" }, "Source"))), h("tbody", {}, ...rows))];
  }
}
