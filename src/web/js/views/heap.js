// Heap snapshots: what lives in the heap of the process, what is free, and what two snapshots differ in.

import { fill, h, notice, say, select, set } from "../dom.js";
import { bytes, clock, exact, number } from "../format.js";
import { addressMap } from "../heap/address_map.js";
import { stackTables } from "../heap/stack_tables.js";
import { heapTree, WAYS } from "../heap/tree.js";
import { card, diffCards, occupancyCard, tableCards } from "../heap/tables.js";
import { MISSING } from "../heap/glossary.js";
import { change, state } from "../state.js";
import { Graph } from "./graph.js";

/** @typedef {import("../api.js").HeapInfo} HeapInfo */
/** @typedef {Record<string, any>} Heap */
/** A snapshot, and who made its heap grow. @typedef {{ snapshot: HeapInfo, heap: Heap, grown_by?: Record<string, any> | null, by_stack?: Record<string, any> | null }} Whole */
/**
 * Where snapshots come from: memprof's API, or one snapshot in the document.
 * @typedef {object} Source
 * @property {() => Promise<HeapInfo[]>} list
 * @property {(id: string) => Promise<Whole>} get
 * @property {(from: string, to: string) => Promise<any>} [diff]
 * @property {(limit: string) => Promise<HeapInfo>} [take] with at most this many milliseconds of stop, if given
 * @property {(id: string) => Promise<void>} [remove]
 */

const ABOUT = "A heap snapshot says what lives in the heap of the process now: also what was allocated before memprof attached. The process is stopped for the milliseconds in which its memory is copied.";
const LIMITS = /** @type {[string, string][]} */ ([["", "as --max-freeze says"], ["200", "200 ms"], ["1000", "1 s"], ["10000", "10 s"]]);

/** The treemap of a snapshot: its nodes are sizes and not functions. */
class HeapMap extends Graph {
  /** @override */
  facts(/** @type {import("../tree/model.js").Tree} */ tree, /** @type {number} */ node) {
    const facts = super.facts(tree, node).filter(([term]) => ["change", "before", "of all", "of zoomed"].includes(term));
    return [["size", bytes(tree.value[node]), exact(tree.value[node])], ...facts];
  }

  /** @override */
  describe(/** @type {import("../tree/model.js").Tree} */ tree, /** @type {number} */ node) {
    const facts = this.facts(tree, node).map(([term, text, title]) => h("span", { class: "fact", title }, h("span", { class: "faint" }, `${term} `), h("b", {}, text)));
    const path = tree.path(node).map((at) => tree.of(at).name).join(" › ");
    fill(
      this.selection,
      h("div", { class: "name", title: path }, path || tree.of(0).name),
      h("div", { class: "facts" }, ...facts),
      this.zoomed > 0 && h("div", { class: "actions" }, h("button", { class: "small", onclick: () => this.zoom(0) }, "zoom out")),
    );
    this.selection.classList.toggle("whole", node === 0);
    set(this.selection, { "data-key": tree.key(node), "data-bytes": tree.value[node] });
  }
}

/** The limit of a stop that was last chosen, also for the next view. */
let limit = "";

/** Says which heaps were read, and how much of them is in use. */
function told(/** @type {import("../heap/glossary.js").Heap} */ heap, /** @type {HeapInfo} */ snapshot) {
  const { allocator, jemalloc } = heap;
  const several = heap.attempts > 1 ? `, in ${heap.attempts} attempts` : "";
  const moment = "A process that is stopped in the middle of malloc has such a heap, or one that is damaged.";
  const found = [];
  if (allocator.name === "refused") found.push(`glibc’s heap was not read${several}: ${allocator.reason}. ${moment}`);
  if (jemalloc?.state === "refused") found.push(`jemalloc’s heap was not read${several}: ${jemalloc.reason}. ${moment}`);
  if (allocator.name === "glibc") found.push(`glibc, ${number(allocator.arenas)} ${allocator.arenas === 1 ? "arena" : "arenas"}, threads’ caches with chunks: ${number(allocator.thread_caches)}.`);
  if (jemalloc?.state === "read") found.push(`jemalloc ${jemalloc.version ?? ""} (${jemalloc.module}), ${number(jemalloc.extents)} extents, threads’ caches: ${number(jemalloc.thread_caches)}; its own figures: ${bytes(jemalloc.figures.allocated)} allocated with those in caches, ${bytes(jemalloc.figures.active)} active, ${bytes(jemalloc.figures.resident)} resident.`);
  if (!found.length) return "The allocator is not known: the process has no heap that memprof reads. Its anonymous memory is shown by kind.";
  const trimmed = allocator.name === "glibc" ? `, of which malloc_trim(0) would return ${bytes(snapshot.trimmable)} now` : "";
  const lost = snapshot.unreachable === null ? "" : `${bytes(snapshot.unreachable)} unreachable; `;
  if (heap.types) found.push(`${bytes(snapshot.live)} in use, ${bytes(snapshot.free)} free${trimmed}; ${lost}${bytes(snapshot.overhead)} of the allocator’s own.`);
  return found.join(" ");
}

export class HeapView {
  constructor(/** @type {Source} */ source) {
    this.source = source;
    /** @type {HeapInfo[]} */
    this.infos = [];
    /** The snapshots that were read, by their ids; they do not change. @type {Map<string, Whole>} */
    this.known = new Map();
    /** @type {Heap | null} */
    this.heap = this.before = null;
    this.map = new HeapMap({ draw: "treemap", kind: "anon", fetch: async () => heapTree(/** @type {Heap} */ (this.heap), this.before, state.hby), empty: "The process has no anonymous memory." });
    this.map.stage.style.flexBasis = "20rem";
    this.choice = h("div", { class: "choice heap-choice" });
    const ways = /** @type {[string, string][]} */ (WAYS.map(([way, label]) => [way, label]));
    this.way = select("Treemap by", ways, state.hby, (hby) => change({ hby, zoom: "", sel: "" }, true));
    this.about = h("span", { class: "faint" });
    this.ways = h("div", { class: "choice heap-choice" }, h("label", { class: "faint" }, "treemap by ", this.way), this.about);
    /** What the treemap divides the heap by now. @type {string | null} */
    this.divided = null;
    this.trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    this.note = h("p", { class: "note", role: "status" });
    this.cards = h("div", { class: "cards" });
    this.stage = h("div", { class: "diff-stage" });
    this.element = h("div", { class: "graph heap" }, this.choice, this.trouble, this.note, this.stage);
    this.taking = false;
    this.signature = "";
    this.shown = "";
  }

  get graph() {
    return this.heap ? this.map : null;
  }

  async refresh() {
    this.infos = await this.source.list();
    const has = (/** @type {string} */ id) => this.infos.some((info) => info.id === id);
    // Without a choice, the newest one.
    const id = has(state.heap) ? state.heap : (this.infos.at(-1)?.id ?? "");
    const from = has(state.hfrom) && state.hfrom !== id ? state.hfrom : "";
    for (const known of this.known.keys()) if (!has(known)) this.known.delete(known);
    this.id = id;
    this.choose(id, from);
    if (!id) {
      this.heap = this.before = null;
      this.shown = "";
      say(this.note, "");
      const button = this.source.take ? h("button", { onclick: () => this.take() }, "Take a heap snapshot") : null;
      return fill(this.stage, notice("No heap snapshot yet", ABOUT, "", button));
    }
    const shown = `${from} ${id}`;
    if (shown === this.shown) return this.divide();
    const [whole, before, diff] = await Promise.all([this.get(id), from ? this.get(from) : null, from && this.source.diff ? this.source.diff(from, id) : null]);
    this.shown = shown;
    this.heap = whole.heap;
    this.before = before?.heap ?? null;
    this.tell(whole, before);
    const heap = whole.heap;
    if (diff) fill(this.cards, occupancyCard(diff.occupancy), ...diffCards(diff.tables));
    else {
      const { map, ...lists } = heap;
      const picture = addressMap(map);
      const pages = heap.rows.some((/** @type {any} */ row) => row.bytes > 0) && occupancyCard([heap.occupancy]);
      fill(this.cards, pages, picture && card("map", "The heap by address", picture.about, picture.content), ...tableCards({ ...lists, grown_by: whole.grown_by ?? null, by_stack: stackTables(whole.by_stack) }));
    }
    if (!this.stage.contains(this.map.element)) fill(this.stage, this.ways, this.map.element, this.cards);
    this.divided = null;
    await this.divide();
  }

  /** Draws the treemap as the link says. */
  async divide() {
    const [way, , about] = WAYS.find(([way]) => way === state.hby) ?? WAYS[0];
    if (way === this.divided) return;
    this.divided = way;
    this.way.value = way;
    say(this.about, about);
    await this.map.refresh();
    set(this.ways, { "data-way": way });
  }

  async get(/** @type {string} */ id) {
    const known = this.known.get(id) ?? (await this.source.get(id));
    this.known.set(id, known);
    return known;
  }

  /** Says what the snapshot is, and how it was taken. */
  tell(/** @type {Whole} */ { snapshot, heap, grown_by }, /** @type {Whole | null} */ before) {
    const read = told(heap, snapshot);
    const says = `the kernel says ${bytes(heap.kernel[0])} before and ${bytes(heap.kernel[1])} after`;
    const kernel = { equal: "as the kernel says", between: "between the kernel’s figures before and after", changed: `${says}: the process changed meanwhile`, differs: says }[/** @type {string} */ (heap.agreement)];
    const missing = heap.missing.map((/** @type {any} */ { kind, bytes: lacks }) => ` Not in the snapshot: ${bytes(lacks)} of ${MISSING[kind] ?? kind}.`).join("");
    const doubt = heap.not_called_unreachable ? ` No chunk is called unreachable: ${heap.not_called_unreachable}.` : "";
    const again = heap.disturbed ? ` ${number(heap.attempts)} snapshots were taken, because ${heap.disturbed}.` : "";
    const swapped = heap.swapped ? ` ${bytes(heap.swapped)} are swapped out, in no figure here.` : "";
    const python = heap.python?.state === "refused" ? ` Python’s own allocator was not read: ${heap.python.reason}.` : "";
    const grown = grown_by?.error ? ` Who made the heap grow is not known: ${grown_by.error}.` : "";
    const { approach, stop_ms, second_stop_ms, stops_ms, not_forked, remains } = heap.taken;
    const stopped = approach === "fork" ? `Stopped for ${stop_ms.toFixed(1)} ms to be forked, and one thread for ${second_stop_ms.toFixed(1)} ms afterwards` : `Stopped for ${stop_ms.toFixed(1)} ms`;
    const earlier = stops_ms - stop_ms - second_stop_ms;
    const failed = earlier >= 0.1 ? `, and for ${earlier.toFixed(1)} ms by attempts that failed` : "";
    const left = remains ? ` ${remains[0].toUpperCase()}${remains.slice(1)}.` : "";
    const why = not_forked ? ` Its memory was copied while it was stopped, because it was not forked: ${not_forked}.` : "";
    const compared = before ? ` Red areas grew since the earlier snapshot, blue ones shrank; the cards show changes.` : "";
    say(this.note, `${read} Anonymous memory: ${bytes(heap.anonymous)}, ${kernel}.${missing}${doubt}${swapped}${again}${python}${grown} ${stopped}${failed}, ${bytes(heap.copied)} copied.${why}${left}${compared}`);
    set(this.note, { "data-total": heap.anonymous, "data-id": snapshot.id });
  }

  /** Shows buttons and lists to take a snapshot, to select one, and to select another one to compare it with. */
  choose(/** @type {string} */ id, /** @type {string} */ from) {
    const { take, diff, remove } = this.source;
    const several = new Set(this.infos.map((info) => info.pid)).size > 1;
    const name = (/** @type {HeapInfo} */ info) => `${info.name ?? `snapshot ${info.id}`} (${clock(info.taken)}${several ? `, ${info.comm} ${info.pid}` : ""})`;
    const options = /** @type {[string, string][]} */ (this.infos.map((info) => [info.id, name(info)]));
    const signature = JSON.stringify([options, id, from, this.taking]);
    if (signature === this.signature || !take) return;
    this.signature = signature;
    fill(
      this.choice,
      h("button", { id: "take-heap", disabled: this.taking, onclick: () => this.take(), title: ABOUT }, this.taking ? "Taking a snapshot…" : "Take a heap snapshot"),
      h("label", { class: "faint" }, "stop at most ", select("Longest stop", LIMITS, limit, (ms) => (limit = ms), "How long the process may be stopped while its memory is copied")),
      options.length > 0 && h("label", { class: "faint" }, "snapshot ", select("Snapshot", options, id, (heap) => change({ heap, zoom: "", sel: "" }, true))),
      options.length > 1 && diff && h("label", { class: "faint" }, "compared with ", select("Compared with", [["", "nothing"], ...options.filter(([other]) => other !== id)], from, (hfrom) => change({ hfrom, zoom: "", sel: "" }, true))),
      id && remove && h("button", { class: "small", onclick: () => this.act(() => remove(id)) }, "delete this snapshot"),
    );
  }

  async take() {
    if (this.taking || !this.source.take) return;
    this.taking = true;
    this.choose(this.id ?? "", state.hfrom);
    const take = this.source.take;
    await this.act(async () => {
      const { id } = await take(limit);
      change({ heap: id, zoom: "", sel: "" });
    });
    this.taking = false;
    await this.refresh();
  }

  /** Does what the user asked for, and shows why it failed. */
  async act(/** @type {() => Promise<void>} */ does) {
    this.trouble.hidden = true;
    try {
      await does();
      await this.refresh();
    } catch (error) {
      this.trouble.textContent = error instanceof Error ? error.message : String(error);
      this.trouble.hidden = false;
    }
  }

  show() {
    if (this.heap) this.map.show();
  }
}
