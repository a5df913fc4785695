// Heap snapshots: what an expert would say of one, the tables that answer most, and details behind a button; and the difference
// between two snapshots.

import { choices } from "../choices.js";
import { display, h, messageOf, notice, replace, select, setProperties, setText } from "../dom.js";
import { bytes, clock, exact, number, percent } from "../format.js";
import { addressMap } from "../heap/address_map.js";
import { stackTables } from "../heap/stack_tables.js";
import { diffCards, divided, heapCard, occupancyCard, tableCards } from "../heap/tables.js";
import { DIVISIONS, heapTree } from "../heap/tree.js";
import { MISSING } from "../heap/glossary.js";
import { change, state } from "../state.js";
import { Graph } from "./graph.js";

/** @typedef {import("../api.js").HeapInfo} HeapInfo */
/** @typedef {Record<string, any>} Heap */
/** A snapshot, and the stacks that made its heap grow. @typedef {{ snapshot: HeapInfo, heap: Heap, grown_by?: Record<string, any> | null, by_stack?: Record<string, any> | null }} Whole */
/**
 * The source of snapshots: memprof's API, or one snapshot in the document.
 * @typedef {object} SnapshotSource
 * @property {() => Promise<HeapInfo[]>} list
 * @property {(id: string) => Promise<Whole>} get
 * @property {(from: string, to: string) => Promise<any>} [diff]
 * @property {(maxStop: string) => Promise<HeapInfo>} [take] `maxStop` is the maximum stop in milliseconds, or empty
 * @property {(id: string) => Promise<void>} [remove]
 */

const ABOUT = "A heap snapshot shows the objects in the heap of the process now, including those allocated before memprof attached. The process is stopped for milliseconds while its memory is copied.";
const STOP_LIMITS = /** @type {[string, string][]} */ ([["", "default (--max-freeze)"], ["200", "200 ms"], ["1000", "1 s"], ["10000", "10 s"]]);

/** The treemap of a snapshot. The nodes are sizes, not functions. */
class HeapTreemap extends Graph {
  /** @override */
  facts(/** @type {import("../tree/model.js").Tree} */ tree, /** @type {number} */ node) {
    const facts = super.facts(tree, node).filter(([term]) => ["change", "before", "of all", "of zoomed"].includes(term));
    return [["size", bytes(tree.value[node]), exact(tree.value[node])], ...facts];
  }

  /** @override */
  details(/** @type {import("../tree/model.js").Tree} */ tree, /** @type {number} */ node) {
    const path = tree.path(node).map((at) => tree.frameOf(at).name).join(" › ");
    const button = this.zoomOutButton();
    return { name: path || tree.frameOf(0).name, title: path, location: null, actions: button ? [button] : [] };
  }
}

/** The last selected maximum stop, which the next view also uses. */
let maxStop = "";

/** The heaps that were read, and how much of them is in use. */
function describeHeaps(/** @type {import("../heap/glossary.js").Heap} */ heap, /** @type {HeapInfo} */ snapshot) {
  const { allocator, jemalloc } = heap;
  const several = heap.attempts > 1 ? `, in ${heap.attempts} attempts` : "";
  const cause = "The process was stopped in the middle of malloc, or its heap is damaged.";
  const found = [];
  if (allocator.name === "refused") found.push(`glibc’s heap was not read${several}: ${allocator.reason}. ${cause}`);
  if (jemalloc?.state === "refused") found.push(`jemalloc’s heap was not read${several}: ${jemalloc.reason}. ${cause}`);
  if (allocator.name === "glibc") found.push(`glibc, ${number(allocator.arenas)} ${allocator.arenas === 1 ? "arena" : "arenas"}, thread caches with chunks: ${number(allocator.thread_caches)}.`);
  if (jemalloc?.state === "read") found.push(`jemalloc ${jemalloc.version ?? ""} (${jemalloc.module}), ${number(jemalloc.extents)} extents, thread caches: ${number(jemalloc.thread_caches)}; jemalloc’s own figures: ${bytes(jemalloc.figures.allocated)} allocated including caches, ${bytes(jemalloc.figures.active)} active, ${bytes(jemalloc.figures.resident)} resident.`);
  if (!found.length) return "The allocator is unknown: the process has no heap that memprof can read. The anonymous memory of the process is shown by kind.";
  const trimmed = allocator.name === "glibc" ? `, of which malloc_trim(0) would return ${bytes(snapshot.trimmable)} now` : "";
  const unreachable = snapshot.unreachable === null ? "" : `${bytes(snapshot.unreachable)} unreachable; `;
  if (heap.types) found.push(`${bytes(snapshot.live)} in use, ${bytes(snapshot.free)} free${trimmed}; ${unreachable}${bytes(snapshot.overhead)} of the allocator’s own.`);
  return found.join(" ");
}

/** What an expert would say of a snapshot: memprof's sentences or, of an older memprof, one that is made here. */
function verdictOf(/** @type {Whole} */ { snapshot, heap }, /** @type {Whole | null} */ before) {
  if (before) {
    const change = (/** @type {"live" | "free"} */ name) => `${bytes(before.snapshot[name])} → ${bytes(snapshot[name])}`;
    return [`In use: ${change("live")}. Free: ${change("free")}. Anonymous memory: ${bytes(before.snapshot.anonymous)} → ${bytes(snapshot.anonymous)}.`];
  }
  if (snapshot.verdict?.length) return snapshot.verdict;
  if (!heap.types) return [describeHeaps(/** @type {any} */ (heap), snapshot)];
  const lost = snapshot.unreachable ? ` Nothing refers to ${bytes(snapshot.unreachable)}: they are probably lost.` : "";
  return [`${bytes(snapshot.live)} of ${bytes(snapshot.anonymous)} are in use (${percent(snapshot.live, snapshot.anonymous)}), ${bytes(snapshot.free)} are free.${lost}`];
}

export class HeapView {
  constructor(/** @type {SnapshotSource} */ source) {
    this.source = source;
    /** @type {HeapInfo[]} */
    this.infos = [];
    /** The fetched snapshots by id. A snapshot does not change. @type {Map<string, Whole>} */
    this.fetched = new Map();
    /** @type {Heap | null} */
    this.heap = this.before = null;
    this.treemap = new HeapTreemap({ draw: "treemap", kind: "anon", fetch: async () => heapTree(/** @type {Heap} */ (this.heap), this.before, state.hby), empty: "The process has no anonymous memory." });
    this.treemap.stage.style.flexBasis = "13rem";
    this.selectors = h("div", { class: "choice heap-choice" });
    const divisions = /** @type {[string, string][]} */ (DIVISIONS.map(([value, label]) => [value, label]));
    this.divisionSelect = select("Treemap by", divisions, state.hby, (hby) => change({ hby, zoom: "", sel: "" }, true));
    this.about = h("span", { class: "faint" });
    this.divisionRow = h("div", { class: "choice heap-choice" }, h("label", { class: "faint" }, "treemap by ", this.divisionSelect), this.about);
    this.picture = h("section", { class: "card picture", "aria-label": "The heap as a treemap" }, this.divisionRow, this.treemap.element);
    /** The division that the treemap shows. @type {string | null} */
    this.division = null;
    this.error = h("p", { class: "trouble", role: "alert", hidden: true });
    this.note = h("p", { class: "note" });
    this.verdict = h("div", { class: "verdict", role: "status" });
    this.cards = h("div", { class: "cards" });
    this.more = h("div", { class: "cards" });
    this.details = h("details", { class: "more" }, h("summary", {}, "Details"), this.more);
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph heap" }, this.selectors, this.error, this.stage);
    /** The table of commands, while there is no snapshot. @type {HTMLElement | null} */
    this.choices = null;
    this.taking = false;
    this.signature = "";
    this.shown = "";
  }

  get graph() {
    return this.heap ? this.treemap : null;
  }

  async refresh() {
    this.infos = await this.source.list();
    const has = (/** @type {string} */ id) => this.infos.some((info) => info.id === id);
    // By default, the newest snapshot.
    const id = has(state.heap) ? state.heap : (this.infos.at(-1)?.id ?? "");
    const from = has(state.hfrom) && state.hfrom !== id ? state.hfrom : "";
    for (const known of this.fetched.keys()) if (!has(known)) this.fetched.delete(known);
    this.id = id;
    this.showSelectors(id, from);
    if (!id) {
      this.heap = this.before = null;
      this.shown = "";
      setText(this.note, "");
      if (this.source.take) this.choices ??= choices();
      const button = this.source.take ? h("div", {}, h("button", { onclick: () => this.take() }, "Take a heap snapshot"), this.choices) : null;
      return replace(this.stage, notice("No heap snapshot yet", ABOUT, "with-choices", button));
    }
    const shown = `${from} ${id}`;
    if (shown === this.shown) return this.showTreemap();
    const [whole, before, diff] = await Promise.all([this.get(id), from ? this.get(from) : null, from && this.source.diff ? this.source.diff(from, id) : null]);
    this.shown = shown;
    this.heap = whole.heap;
    this.before = before?.heap ?? null;
    this.describe(whole, before);
    const heap = whole.heap;
    replace(this.verdict, ...verdictOf(whole, before).map((text) => h("p", {}, text)));
    const { map, ...lists } = heap;
    const picture = addressMap(map);
    const pages = heap.rows.some((/** @type {any} */ row) => row.bytes > 0) && occupancyCard([heap.occupancy]);
    const cards = diff
      ? [occupancyCard(diff.occupancy), ...diffCards(diff.tables)]
      : [pages, picture && heapCard("map", "The heap by address", picture.about, picture.content), ...tableCards({ ...lists, grown_by: whole.grown_by ?? null, by_stack: stackTables(whole.by_stack) })];
    const { first, details } = divided(cards);
    replace(this.cards, ...first, this.picture);
    replace(this.more, ...details);
    setText(this.details.firstElementChild, `Details: ${details.map((card) => card.querySelector("h2")?.textContent).join(", ")}`);
    this.details.hidden = details.length === 0;
    display(this.stage, this.verdict, this.cards, this.note, this.details);
    this.division = null;
    await this.showTreemap();
  }

  /** Shows the treemap with the division of the link. */
  async showTreemap() {
    const [division, , about] = DIVISIONS.find(([value]) => value === state.hby) ?? DIVISIONS[0];
    if (division === this.division) return;
    this.division = division;
    this.divisionSelect.value = division;
    setText(this.about, about);
    await this.treemap.refresh();
    setProperties(this.divisionRow, { "data-way": division });
  }

  async get(/** @type {string} */ id) {
    const known = this.fetched.get(id) ?? (await this.source.get(id));
    this.fetched.set(id, known);
    return known;
  }

  /** Describes the snapshot, and how it was taken. */
  describe(/** @type {Whole} */ { snapshot, heap, grown_by }, /** @type {Whole | null} */ before) {
    const heaps = describeHeaps(heap, snapshot);
    const figures = `the kernel reports ${bytes(heap.kernel[0])} before and ${bytes(heap.kernel[1])} after`;
    const kernel = { equal: "equal to the kernel’s figure", between: "between the kernel’s figures before and after", changed: `${figures}: the process changed meanwhile`, differs: figures, not_compared: "read from a core, which has no figures of the kernel" }[/** @type {string} */ (heap.agreement)];
    const missing = heap.missing.map((/** @type {any} */ { kind, bytes: size }) => ` Not in the snapshot: ${bytes(size)} of ${MISSING[kind] ?? kind}.`).join("");
    const uncertain = heap.not_called_unreachable ? ` No chunk is called unreachable: ${heap.not_called_unreachable}.` : "";
    const again = heap.disturbed ? ` memprof took ${number(heap.attempts)} snapshots, because ${heap.disturbed}.` : "";
    const swapped = heap.swapped ? ` ${bytes(heap.swapped)} are swapped out and not counted here.` : "";
    const python = heap.python?.state === "refused" ? ` Python’s own allocator was not read: ${heap.python.reason}.` : "";
    const grown = grown_by?.error ? ` The stacks that made the heap grow are unknown: ${grown_by.error}.` : "";
    const { approach, stop_ms, second_stop_ms, stops_ms, not_forked, remains } = heap.taken;
    const stopped = approach === "core" ? `Read from the core ${heap.core?.path ?? ""}${heap.core?.residency ? "" : ": figures are bytes in the core, not resident ones"}` : approach === "fork" ? `Stopped for ${stop_ms.toFixed(1)} ms to fork, then one thread for ${second_stop_ms.toFixed(1)} ms` : `Stopped for ${stop_ms.toFixed(1)} ms`;
    const earlier = stops_ms - stop_ms - second_stop_ms;
    const failed = earlier >= 0.1 ? `, and for ${earlier.toFixed(1)} ms by failed attempts` : "";
    const leftover = remains ? ` ${remains[0].toUpperCase()}${remains.slice(1)}.` : "";
    const why = not_forked ? ` The process was stopped during the whole copy, because it was not forked: ${not_forked}.` : "";
    const compared = before ? ` Red areas grew since the earlier snapshot, blue areas shrank; the cards show changes.` : "";
    setText(this.note, `${heaps} Anonymous memory: ${bytes(heap.anonymous)}, ${kernel}.${missing}${uncertain}${swapped}${again}${python}${grown} ${stopped}${failed}, ${bytes(heap.copied)} copied.${why}${leftover}${compared}`);
    setProperties(this.note, { "data-total": heap.anonymous, "data-id": snapshot.id });
  }

  /** Shows the controls to take, select, compare and delete snapshots. */
  showSelectors(/** @type {string} */ id, /** @type {string} */ from) {
    const { take, diff, remove } = this.source;
    const several = new Set(this.infos.map((info) => info.pid)).size > 1;
    const name = (/** @type {HeapInfo} */ info) => `${info.name ?? `snapshot ${info.id}`} (${clock(info.taken)}${several ? `, ${info.comm} ${info.pid}` : ""})`;
    const options = /** @type {[string, string][]} */ (this.infos.map((info) => [info.id, name(info)]));
    const signature = JSON.stringify([options, id, from, this.taking]);
    if (signature === this.signature || !take) return;
    this.signature = signature;
    replace(
      this.selectors,
      h("button", { id: "take-heap", disabled: this.taking, onclick: () => this.take(), title: ABOUT }, this.taking ? "Taking a snapshot…" : "Take a heap snapshot"),
      h("label", { class: "faint" }, "maximum stop ", select("Maximum stop", STOP_LIMITS, maxStop, (ms) => (maxStop = ms), "Maximum time for which the process is stopped while its memory is copied")),
      options.length > 0 && h("label", { class: "faint" }, "snapshot ", select("Snapshot", options, id, (heap) => change({ heap, zoom: "", sel: "" }, true))),
      options.length > 1 && diff && h("label", { class: "faint" }, "compared with ", select("Compared with", [["", "nothing"], ...options.filter(([other]) => other !== id)], from, (hfrom) => change({ hfrom, zoom: "", sel: "" }, true))),
      id && remove && h("button", { class: "small", onclick: () => this.run(() => remove(id)) }, "delete this snapshot"),
    );
  }

  async take() {
    if (this.taking || !this.source.take) return;
    this.taking = true;
    this.showSelectors(this.id ?? "", state.hfrom);
    const take = this.source.take;
    await this.run(async () => {
      const { id } = await take(maxStop);
      change({ heap: id, zoom: "", sel: "" });
    });
    this.taking = false;
    await this.refresh();
  }

  /** Runs an action of the user; shows its error. */
  async run(/** @type {() => Promise<void>} */ action) {
    this.error.hidden = true;
    try {
      await action();
      await this.refresh();
    } catch (error) {
      this.error.textContent = messageOf(error);
      this.error.hidden = false;
    }
  }

  show() {
    if (this.heap) this.treemap.show();
  }
}
