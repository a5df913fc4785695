// A heap snapshot as a tree for the treemap: by kind and size, by type or by arena. Each has all bytes of the heap, resident
// or not, and the resident bytes of other memory.

import { Tree } from "../tree/model.js";
import { sizeName } from "./tables.js";
import { KINDS, ROLES, WHATS } from "./glossary.js";

/** @typedef {Record<string, any>} Heap */
/** The areas of a snapshot: [path of names, bytes]. @typedef {[string[], number][]} Areas */

const [USED, FREE, OWN, UNLISTED] = ["in use", "free", "the allocator’s own", "types that are not listed"];

/** The ways to divide a heap: [value in the link, label, what an area is]. */
export const WAYS = /** @type {[string, string, string][]} */ ([
  ["", "kind and size", "Areas are chunks with their headers, resident or not; other memory is resident."],
  ["type", "type", "Areas are contents of chunks, resident or not; other memory is resident."],
  ["arena", "arena", "Areas are the bytes of each arena, resident or not; other memory is resident."],
]);

const sum = (/** @type {any[]} */ rows, /** @type {string} */ column) => rows.reduce((sum, row) => sum + row[column], 0);

/** What is in use and what is free by size class. */
function bySize(/** @type {Heap} */ heap) {
  const found = /** @type {Areas} */ ([]);
  for (const { from, to, live_bytes, free_bytes } of heap.sizes) {
    const name = `${sizeName(from, to)} bytes`;
    found.push([[USED, name], live_bytes], [[FREE, name], free_bytes]);
  }
  // Ends of arenas, jemalloc’s free pages and Python’s blocks have no size class, and headers are part of the classes' bytes.
  const sizeless = ["top", "jemalloc_dirty", "jemalloc_muzzy", "jemalloc_retained", "python_live", "python_free", "python_pools"];
  for (const { what, bytes } of heap.rows) {
    if (sizeless.includes(what)) found.push([WHATS[what].split(", "), bytes]);
  }
  const shown = found.reduce((sum, [, bytes]) => sum + bytes, 0);
  found.push([[OWN], Math.max(0, sum(heap.rows, "bytes") - shown)]);
  return found;
}

/** What is in use by type, what is free by kind. */
function byType(/** @type {Heap} */ heap) {
  const found = /** @type {Areas} */ ([]);
  const types = heap.types?.rows ?? [];
  for (const { kind, name, bytes } of types) {
    found.push([["text", "pointers", "zeroes"].includes(kind) ? [USED, KINDS[kind]] : [USED, KINDS[kind], name], bytes]);
  }
  const blocks = heap.python?.state === "read" ? heap.python.types : [];
  for (const { type, role, arena_bytes } of blocks) {
    const name = role === "object" ? type : role === "memory" ? `memory of ${type}` : ROLES[role];
    found.push([[USED, "Python", name], arena_bytes]);
  }
  // What the lists do not have.
  const rest = /** @type {Record<string, number>} */ ({ live: sum(types, "bytes"), python_live: sum(blocks, "arena_bytes") });
  for (const { what, bytes } of heap.rows) {
    if (["live", "live_mapped", "jemalloc_live", "jemalloc_large"].includes(what)) rest.live -= bytes;
    else if (what === "python_live") found.push([[USED, "Python", UNLISTED], Math.max(0, bytes - rest.python_live)]);
    else found.push([what.endsWith("overhead") ? [OWN] : WHATS[what].split(", "), bytes]);
  }
  found.push([[USED, UNLISTED], Math.max(0, -rest.live)]);
  return found;
}

function byArena(/** @type {Heap} */ heap) {
  return /** @type {Areas} */ (heap.arenas.flatMap((/** @type {any} */ { name, live, free, overhead }) => [[[name, USED], live], [[name, FREE], free], [[name, OWN], overhead]]));
}

/** @returns {Areas} */
function areas(/** @type {Heap} */ heap, /** @type {string} */ way) {
  const found = way === "type" ? byType(heap) : way === "arena" ? byArena(heap) : bySize(heap);
  for (const { category, resident } of heap.others) found.push([["other anonymous memory", category], resident]);
  return found;
}

/** The tree of a snapshot or, with an earlier one, of their difference. */
export function heapTree(/** @type {Heap} */ heap, /** @type {Heap | null} */ before = null, way = "") {
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
        // The module decides the colour: that of what the bytes are or, above that, of the outermost name.
        const what = depth > 0 && [USED, FREE, OWN].includes(name) ? name : path[0];
        frame.push(frames.push({ name, text: name, module: what, type: "function", own: what === USED }) - 1);
        for (const side of self) side.push(0);
        nodes.set(key, found);
      }
      at = found;
    });
    return at;
  };
  [before, heap].forEach((snapshot, side) => {
    if (!snapshot) return;
    for (const [path, bytes] of areas(snapshot, way)) if (bytes > 0) self[side][node(path)] += bytes;
  });
  const total = (/** @type {number[]} */ own) => {
    const sums = own.slice();
    for (let i = sums.length - 1; i > 0; i--) sums[parent[i]] += sums[i];
    return sums;
  };
  return new Tree({ frames, parent, frame, value: total(self[1]), self: self[1], ...(before ? { before: total(self[0]), selfBefore: self[0] } : {}) });
}
