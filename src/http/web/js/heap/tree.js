// A heap snapshot as a tree for the treemap: by kind and size, by type or by arena. Each tree contains all bytes of the heap,
// resident or not, and the resident bytes of other memory.

import { Tree } from "../tree/model.js";
import { sizeName } from "./tables.js";
import { BYTE_KINDS, ROLES, TYPE_KINDS } from "./glossary.js";

/** @typedef {Record<string, any>} Heap */
/** The areas of a snapshot: [path of names, bytes]. @typedef {[string[], number][]} Areas */

const [USED, FREE, OWN, UNLISTED] = ["in use", "free", "the allocator’s own", "types that are not listed"];

/** The divisions of a heap: [value in the link, label, description of areas]. */
export const DIVISIONS = /** @type {[string, string, string][]} */ ([
  ["", "kind and size", "Areas are chunks with their headers, resident or not; other memory is resident."],
  ["type", "type", "Areas are contents of chunks, resident or not; other memory is resident."],
  ["arena", "arena", "Areas are the bytes of each arena, resident or not; other memory is resident."],
]);

const sum = (/** @type {any[]} */ rows, /** @type {string} */ column) => rows.reduce((sum, row) => sum + row[column], 0);

/** Memory in use and free memory, by size class. */
function bySize(/** @type {Heap} */ heap) {
  const found = /** @type {Areas} */ ([]);
  for (const { from, to, live_bytes, free_bytes } of heap.sizes) {
    const name = `${sizeName(from, to)} bytes`;
    found.push([[USED, name], live_bytes], [[FREE, name], free_bytes]);
  }
  // The ends of arenas, jemalloc’s free pages and Python’s blocks have no size class. Headers are part of the bytes of a class.
  const sizeless = ["top", "jemalloc_dirty", "jemalloc_muzzy", "jemalloc_retained", "span_pages", "managed_live", "managed_free", "managed_pages", "python_live", "python_free", "python_pools"];
  for (const { what, bytes } of heap.rows) {
    if (sizeless.includes(what)) found.push([BYTE_KINDS[what].split(", "), bytes]);
  }
  const shown = found.reduce((sum, [, bytes]) => sum + bytes, 0);
  found.push([[OWN], Math.max(0, sum(heap.rows, "bytes") - shown)]);
  return found;
}

/** Memory in use by type, and free memory by kind. */
function byType(/** @type {Heap} */ heap) {
  const found = /** @type {Areas} */ ([]);
  const types = heap.types?.rows ?? [];
  for (const { kind, name, bytes } of types) {
    found.push([["text", "pointers", "zeroes"].includes(kind) ? [USED, TYPE_KINDS[kind]] : [USED, TYPE_KINDS[kind], name], bytes]);
  }
  const blocks = heap.python?.state === "read" ? heap.python.types : [];
  for (const { type, role, arena_bytes } of blocks) {
    const name = role === "object" ? type : role === "memory" ? `memory of ${type}` : ROLES[role];
    found.push([[USED, "Python", name], arena_bytes]);
  }
  // Bytes that the lists leave out.
  const rest = /** @type {Record<string, number>} */ ({ live: sum(types, "bytes"), python_live: sum(blocks, "arena_bytes") });
  for (const { what, bytes } of heap.rows) {
    if (["live", "live_mapped", "jemalloc_live", "jemalloc_large", "span_live", "span_large"].includes(what)) rest.live -= bytes;
    else if (what === "python_live") found.push([[USED, "Python", UNLISTED], Math.max(0, bytes - rest.python_live)]);
    else found.push([what.endsWith("overhead") ? [OWN] : BYTE_KINDS[what].split(", "), bytes]);
  }
  found.push([[USED, UNLISTED], Math.max(0, -rest.live)]);
  return found;
}

function byArena(/** @type {Heap} */ heap) {
  return /** @type {Areas} */ (heap.arenas.flatMap((/** @type {any} */ { name, live, free, overhead }) => [[[name, USED], live], [[name, FREE], free], [[name, OWN], overhead]]));
}

/** @returns {Areas} */
function areas(/** @type {Heap} */ heap, /** @type {string} */ division) {
  const found = division === "type" ? byType(heap) : division === "arena" ? byArena(heap) : bySize(heap);
  for (const { category, resident } of heap.others) found.push([["other anonymous memory", category], resident]);
  return found;
}

/** The tree of a snapshot or, with an earlier one, of their difference. */
export function heapTree(/** @type {Heap} */ heap, /** @type {Heap | null} */ before = null, division = "") {
  const [parent, frame] = [[-1], [0]];
  const self = [[0], [0]];
  const frames = /** @type {import("../tree/model.js").Frame[]} */ ([{ name: "heap and other anonymous memory", text: "", module: "", type: "root" }]);
  const nodes = new Map([["", 0]]);
  const node = (/** @type {string[]} */ path) => {
    let at = 0;
    path.forEach((name, depth) => {
      const key = path.slice(0, depth + 1).join("\n");
      let found = nodes.get(key);
      if (found === undefined) {
        found = parent.push(at) - 1;
        // The module determines the colour: use, free or own, or else the outermost name.
        const module = depth > 0 && [USED, FREE, OWN].includes(name) ? name : path[0];
        frame.push(frames.push({ name, text: name, module, type: "function", own: module === USED }) - 1);
        for (const side of self) side.push(0);
        nodes.set(key, found);
      }
      at = found;
    });
    return at;
  };
  [before, heap].forEach((snapshot, side) => {
    if (!snapshot) return;
    for (const [path, bytes] of areas(snapshot, division)) if (bytes > 0) self[side][node(path)] += bytes;
  });
  const total = (/** @type {number[]} */ own) => {
    const sums = own.slice();
    for (let i = sums.length - 1; i > 0; i--) sums[parent[i]] += sums[i];
    return sums;
  };
  return new Tree({ frames, parent, frame, value: total(self[1]), self: self[1], ...(before ? { before: total(self[0]), selfBefore: self[0] } : {}) });
}
