// A heap snapshot as a tree for the treemap: what is in use and what is free by size class, the allocator's own, and
// other memory.

import { Tree } from "../tree/model.js";
import { sizeName, WHATS } from "./tables.js";

/** @typedef {Record<string, any>} Heap */

/** The areas of a snapshot: [path of names, bytes]. @returns {[string[], number][]} */
function areas(/** @type {Heap} */ heap) {
  /** @type {[string[], number][]} */
  const found = [];
  for (const { from, to, live_bytes, free_bytes } of heap.sizes) {
    const name = `${sizeName(from, to)} bytes`;
    found.push([["in use", name], live_bytes], [["free", name], free_bytes]);
  }
  // Ends of arenas, jemalloc’s free pages and Python’s blocks have no size class, and headers are part of the classes' bytes.
  let shown = heap.sizes.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.live_bytes + row.free_bytes, 0);
  for (const { what, bytes } of heap.rows) {
    if (!["top", "jemalloc_dirty", "jemalloc_muzzy", "jemalloc_retained", "python_live", "python_free", "python_pools"].includes(what)) continue;
    found.push([WHATS[what].split(", "), bytes]);
    shown += bytes;
  }
  const whole = heap.rows.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.bytes, 0);
  found.push([["the allocator’s own"], Math.max(0, whole - shown)]);
  for (const { category, resident } of heap.others) found.push([["other anonymous memory", category], resident]);
  return found;
}

/** The tree of a snapshot or, with an earlier one, of their difference. */
export function heapTree(/** @type {Heap} */ heap, /** @type {Heap | null} */ before = null) {
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
        // The module decides the colour: that of the outermost name.
        frame.push(frames.push({ name, text: name, module: path[0], type: "function", own: path[0] === "in use" }) - 1);
        for (const side of self) side.push(0);
        nodes.set(key, found);
      }
      at = found;
    });
    return at;
  };
  [before, heap].forEach((snapshot, side) => {
    if (!snapshot) return;
    for (const [path, bytes] of areas(snapshot)) if (bytes > 0) self[side][node(path)] += bytes;
  });
  const total = (/** @type {number[]} */ own) => {
    const sums = own.slice();
    for (let i = sums.length - 1; i > 0; i--) sums[parent[i]] += sums[i];
    return sums;
  };
  return new Tree({ frames, parent, frame, value: total(self[1]), self: self[1], ...(before ? { before: total(self[0]), selfBefore: self[0] } : {}) });
}
