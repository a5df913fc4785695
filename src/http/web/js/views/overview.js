// The first view: what grows, what the memory is made of, what the newest heap snapshot says, and the peak. memprof makes the
// sentences, so that the page, the terminal and texts say the same. Each row is a link into the view that shows it.

import { api, ApiError, heapSnapshots } from "../api.js";
import { card, h, messageOf, replace, setProperties } from "../dom.js";
import { bytes, clock, exact, percent, signed } from "../format.js";
import { noSymbol } from "../glossary.js";
import { isOffline } from "../offline.js";
import { smallLine } from "../small_line.js";
import { change, link } from "../state.js";

/** @typedef {import("../api.js").Overview} Overview */
/** @typedef {import("../api.js").OverviewRow} Row */
/** @typedef {import("../api.js").OverviewPart} Part */

/** Maximum number of rows of a card. */
const MAX_ROWS = 7;
/** The colours of the parts of the memory, by words of their names; other parts have the remaining ones in turn. */
const COLOURS = /** @type {[RegExp, string][]} */ ([[/^heap|^anonymous memory/, "anon"], [/librar|mapped files/, "file"], [/shared/, "shmem"], [/stack/, "kernel"]]);
const OTHER_COLOURS = ["inuse_space", "alloc_space", "hugetlb", "temporary_space", "swap", "cache"];
/** The views that show parts of the memory, by words of their names; mappings show the others. */
const SHOWN_IN = /** @type {[RegExp, Partial<import("../state.js").State>][]} */ ([[/^heap/, { view: "heap" }], [/page cache/, { view: "files" }], [/swap/, { view: "flame", kind: "swap" }], [/huge pages/, { view: "flame", kind: "hugetlb" }], [/page tables/, { view: "health" }]]);
/** The views that notes name. */
const NOTED = ["health", "heap", "processes", "space", "files", "flame", "diff", "growth"];
/** What a link into a view resets. */
const FRESH = { zoom: "", sel: "", zoomUp: "", selUp: "", sort: "", page: "0", file: "", q: "", fn: "", path: "" };

/** Views that an HTML report does not have. */
const OFFLINE_GONE = isOffline ? ["health", "heap", "processes", "diff", "growth"] : [];

const STOPS = "A snapshot stops the process for milliseconds while its memory is copied; it also shows what was allocated before memprof attached.";

/** A link into a view. The "./" is for accessibility checks, which take links that begin with "#" for skip links. */
const to = (/** @type {Partial<import("../state.js").State>} */ settings, /** @type {any[]} */ ...content) => h("a", { href: `./${link({ ...FRESH, ...settings })}`, "data-to": JSON.stringify(settings) }, ...content);

/** Rows of functions: what they hold, how fast that grows, name, and place in the source. @returns {HTMLElement | false} */
function functions(/** @type {Row[]} */ rows, /** @type {Partial<import("../state.js").State>} */ settings) {
  const grow = rows.some(({ per_hour, values }) => per_hour !== null || values.length > 1);
  const row = (/** @type {Row} */ { function: name, place, path, bytes: size, per_hour, values, own }) => h("li", { class: own ? "" : "foreign" },
    to({ view: "flame", fn: name ?? "", path, ...settings },
      h("span", { class: "num", title: exact(size) }, bytes(size)),
      grow && (per_hour === null ? h("span", { class: "num faint" }, values.length > 1 && "stopped") : h("span", { class: "num changed" }, `${signed(per_hour)}/h`)),
      grow && h("span", { class: "line" }, values.length > 1 && smallLine(values)),
      h("span", { class: "function", title: name ?? noSymbol(place) }, name ?? noSymbol(place)),
      h("span", { class: "faint place" }, name === null ? "" : place)));
  return rows.length > 0 && h("ul", { class: grow ? "links growing" : "links" }, ...rows.slice(0, MAX_ROWS).map(row));
}

/** A part of the memory. */
function partRow(/** @type {Part} */ { name, bytes: size }, /** @type {number} */ whole, /** @type {string} */ colour) {
  const settings = SHOWN_IN.find(([words]) => words.test(name))?.[1] ?? { view: "space" };
  const content = [h("span", { class: "num", title: exact(size) }, bytes(size)), h("span", { class: "num faint share" }, whole ? percent(size, whole) : ""), h("span", { class: "function" }, colour && h("i", { class: `swatch ${colour}` }), name)];
  return h("li", {}, OFFLINE_GONE.includes(settings.view ?? "") ? h("span", { class: "row-text" }, ...content) : to(settings, ...content));
}

const sentence = (/** @type {string} */ text) => h("p", { class: "says" }, text);

export class OverviewView {
  constructor() {
    this.element = h("div", { class: "overview" });
    this.error = h("p", { class: "trouble", role: "alert", hidden: true });
    this.taking = false;
    /** @type {Overview | null} */
    this.data = null;
    this.shown = "";
  }

  async refresh() {
    try {
      this.data = await api.overview();
    } catch (error) {
      // An older memprof, or a report of one, has no overview.
      if (!isOffline && !(error instanceof ApiError && error.status === 404)) throw error;
      return change({ view: "flame" });
    }
    this.show();
    return this.data?.report;
  }

  show() {
    if (!this.data) return;
    const { report, ...said } = this.data;
    const signature = JSON.stringify([said, this.taking, this.error.textContent, link()]);
    if (signature === this.shown) return;
    this.shown = signature;
    const focused = document.activeElement instanceof HTMLElement && this.element.contains(document.activeElement) ? document.activeElement.dataset.to : undefined;
    const cards = /** @type {Record<string, () => any>} */ ({ grows: () => this.grows(), made_of: () => this.madeOf(), heap: () => this.heap(), peak: () => this.peak() });
    const notes = said.notes.map(({ text, view }) => h("li", {}, view && NOTED.includes(view) && !OFFLINE_GONE.includes(view) ? to({ view }, text) : text));
    replace(this.element, notes.length > 0 && h("ul", { class: "notices", "aria-label": "Warnings" }, ...notes), h("div", { class: "overview-cards" }, ...said.order.map((name) => cards[name]?.())));
    if (focused) /** @type {HTMLElement | undefined} */ ([...this.element.querySelectorAll("[data-to]")].find((other) => other instanceof HTMLElement && other.dataset.to === focused))?.focus();
  }

  card(/** @type {string} */ name, /** @type {string} */ title, /** @type {any[]} */ ...content) {
    return card(title, "", content.filter(Boolean), { "data-card": name });
  }

  grows() {
    const { sentence: text, rows } = /** @type {Overview} */ (this.data).grows;
    return this.card("grows", "Grows", sentence(text), functions(rows, {}));
  }

  madeOf() {
    const { sentence: text, rss, parts, beside } = /** @type {Overview} */ (this.data).made_of;
    let others = 0;
    const taken = new Set();
    // Of two parts of one kind, the second has a colour of its own.
    const colourOf = (/** @type {string} */ name) => {
      const colour = COLOURS.find(([words, colour]) => words.test(name) && !taken.has(colour))?.[1];
      taken.add(colour);
      return colour;
    };
    const coloured = parts.map((part) => ({ part, colour: colourOf(part.name) ?? OTHER_COLOURS[others++ % OTHER_COLOURS.length] }));
    const bar = h("div", { class: "made-of", role: "img", "aria-label": parts.map(({ name, bytes: size }) => `${name} ${bytes(size)}`).join(", ") }, ...coloured.map(({ part, colour }) => {
      const piece = h("i", { class: `swatch ${colour}`, title: `${part.name}: ${bytes(part.bytes)}` });
      piece.style.width = `${(100 * part.bytes) / Math.max(1, rss)}%`;
      return piece;
    }));
    return this.card("made_of", "Made of", sentence(text), bar,
      h("ul", { class: "links" }, ...coloured.slice(0, MAX_ROWS).map(({ part, colour }) => partRow(part, rss, colour))),
      beside.length > 0 && h("p", { class: "faint" }, "Not in RSS, but charged:"),
      beside.length > 0 && h("ul", { class: "links" }, ...beside.map((part) => partRow(part, 0, ""))));
  }

  heap() {
    const { heap } = /** @type {Overview} */ (this.data);
    const canTake = !isOffline && !document.body.classList.contains("saved");
    if (!heap && !canTake) return null;
    const [first, ...more] = heap?.sentences.length ? heap.sentences : ["No snapshot of the heap yet."];
    const age = heap && h("span", { class: "faint" }, `taken at ${clock(heap.taken)}${this.data?.report.pid === heap.pid ? "" : ` of process ${heap.pid}`}`);
    const button = canTake && h("button", { class: "small", "data-to": "take", disabled: this.taking, onclick: () => this.take(), title: STOPS }, this.taking ? "Taking a snapshot…" : heap ? "Take another snapshot" : "Take a snapshot");
    return this.card("heap", "Heap", sentence(first), ...more.slice(0, MAX_ROWS).map((text) => h("p", {}, text)), !heap && canTake && h("p", { class: "faint" }, STOPS), this.error,
      h("p", { class: "acts" }, button, heap && to({ view: "heap", heap: heap.id }, "Types, sizes and lost blocks"), age));
  }

  peak() {
    const { peak } = /** @type {Overview} */ (this.data);
    if (!peak) return null;
    // Where the peak is now, there is no other moment to show.
    const acts = !isOffline && peak.rows.length > 0 && h("p", { class: "acts" }, to({ view: "flame", mark: "peak" }, "Show that moment"), to({ view: "diff", from: "peak", to: "" }, "Compare with now"));
    return this.card("peak", "Peak", sentence(peak.sentence), functions(peak.rows, isOffline ? {} : { mark: "peak" }), acts);
  }

  async take() {
    this.taking = true;
    setProperties(this.error, { hidden: true, textContent: "" });
    this.show();
    try {
      await heapSnapshots.take("");
    } catch (error) {
      setProperties(this.error, { hidden: false, textContent: messageOf(error) });
    }
    this.taking = false;
    this.show();
    await this.refresh();
  }
}
