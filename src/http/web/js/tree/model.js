// The call tree, stored as columns: 50,000 nodes are a few arrays instead of 50,000 objects.

import { compare } from "../sort.js";

/** The changes that a diff draws: "" for growth, "shrinkage", or "all". @typedef {string} Changes */

/**
 * The rows of a tree, as parsed by the API client.
 * @typedef {object} Rows
 * @property {Frame[]} frames distinct frames
 * @property {number[]} parent index of each node's parent, which precedes it; the root's is -1
 * @property {number[]} frame index into `frames`, per node
 * @property {number[]} value bytes of the node and everything below it
 * @property {number[]} self bytes of stacks that end at the node
 * @property {number[]} [error] standard errors of `value`, in a diff of its change, if not all stacks were walked
 * @property {number[]} [before] `value` at the earlier moment of a diff
 * @property {number[]} [selfError] standard errors of `self`
 * @property {number[]} [selfBefore] `self` at the earlier moment of a diff
 *
 * @typedef {object} Frame
 * @property {string} name the displayed name
 * @property {string} text the name, or "" if there is none: the text that a search matches
 * @property {string} module base name of the file, or ""
 * @property {string} [path] the file
 * @property {string} [offset] file offset, hexadecimal
 * @property {number} [line] line of source code
 * @property {"root" | "function" | "inlined" | "unmapped" | "cut_off" | "no_stack" | "not_observed" | "below_threshold" | "over_limit"} type as in the API
 * @property {boolean} [own] code of the target's own executable
 */

export class Tree {
  /** Nodes are numbered depth first, siblings by name, so that their positions do not depend on sizes. */
  constructor(/** @type {Rows} */ rows) {
    const count = rows.parent.length;
    this.frames = rows.frames;
    this.count = count;
    this.isDiff = rows.before !== undefined;
    const order = depthFirst(rows);
    const at = new Int32Array(count);
    order.forEach((old, now) => (at[old] = now));
    const pick = (/** @type {number[]} */ column) => Float64Array.from(order, (old) => column[old]);
    this.frame = Int32Array.from(order, (old) => rows.frame[old]);
    this.parent = Int32Array.from(order, (old) => (rows.parent[old] < 0 ? -1 : at[rows.parent[old]]));
    this.value = pick(rows.value);
    this.self = pick(rows.self);
    /** Standard errors of `value`; in a diff, of its change: not smaller than the error of either figure. */
    this.error = rows.error ? pick(rows.error) : new Float64Array(count);
    /** Standard errors of `self`; in a diff, of its change. */
    this.selfError = rows.selfError ? pick(rows.selfError) : new Float64Array(count);
    this.before = rows.before ? pick(rows.before) : null;
    this.selfBefore = rows.selfBefore ? pick(rows.selfBefore) : null;
    /** The report that the tree shows. @type {import("../api.js").Report | undefined} */
    this.report = undefined;
    /** A function, and the bytes of all stacks with it, dropped nodes included. @type {{ fn: string, path: string, bytes: number } | null} */
    this.found = null;
    /** The unit of the figures. @type {import("../kinds.js").Unit} */
    this.unit = "bytes";
    /** Bytes of all stacks, including stacks that are not in the tree. */
    this.whole = this.value[0];
    /** Number of dropped nodes. */
    this.cut = { below_threshold: 0, over_limit: 0 };
    this.depth = new Int32Array(count);
    for (let i = 1; i < count; i++) this.depth[i] = this.depth[this.parent[i]] + 1;
    /** Index of the first node after each node's subtree. */
    this.end = Int32Array.from({ length: count }, (_, i) => i + 1);
    for (let i = count - 1; i > 0; i--) {
      const parent = this.parent[i];
      if (this.end[i] > this.end[parent]) this.end[parent] = this.end[i];
    }
    /** The changes of a diff that are drawn. @type {Changes} */
    this.changes = "all";
    /** Width and left edge of each drawn node, in bytes. */
    this.width = this.value.slice();
    this.x = new Float64Array(count);
    this.layOut();
    this.high = new Uint32Array(count);
    this.low = new Uint32Array(count);
    this.computeKeys();
  }

  /** Computes the width and the left edge of each node. */
  layOut() {
    const { count, parent, self, selfBefore } = this;
    if (selfBefore) {
      // With all changes, a node is wide enough for both moments, so that freed memory is also visible.
      const width = { "": (/** @type {number} */ i) => Math.max(0, self[i] - selfBefore[i]), shrinkage: (/** @type {number} */ i) => Math.max(0, selfBefore[i] - self[i]) }[this.changes];
      for (let i = 0; i < count; i++) this.width[i] = width ? width(i) : Math.max(self[i], selfBefore[i]);
      for (let i = count - 1; i > 0; i--) this.width[parent[i]] += this.width[i];
    }
    const next = new Float64Array(count);
    for (let i = 1; i < count; i++) {
      const above = parent[i];
      this.x[i] = this.x[above] + next[above];
      next[above] += this.width[i];
    }
  }

  /** Computes each node's key: a hash of the names from the root to it, the same in every report. */
  computeKeys() {
    const names = this.frames.map((frame) => hash(`${frame.type}\n${frame.module}\n${frame.name}\n${frame.offset ?? ""}\n${frame.line ?? ""}`));
    for (let i = 1; i < this.count; i++) {
      const [a, b] = names[this.frame[i]];
      const above = this.parent[i];
      this.high[i] = Math.imul(this.high[above] ^ a, 0x9e3779b1) + b;
      this.low[i] = Math.imul(this.low[above] ^ b, 0x85ebca6b) + (a ^ (this.high[i] >>> 15));
    }
  }

  /** The key of a node, for the link. */
  key(/** @type {number} */ node) {
    if (node <= 0) return "";
    const hex = (/** @type {number} */ n) => n.toString(16).padStart(8, "0");
    return hex(this.high[node]) + hex(this.low[node]);
  }

  /** The node with this key; -1 if there is none. */
  find(/** @type {string} */ key) {
    if (!key) return 0;
    const high = parseInt(key.slice(0, 8), 16);
    const low = parseInt(key.slice(8), 16);
    for (let i = 1; i < this.count; i++) if (this.high[i] === high && this.low[i] === low) return i;
    return -1;
  }

  /** The frame of a node. */
  frameOf(/** @type {number} */ node) {
    return this.frames[this.frame[node]];
  }

  /** @returns {number[]} */
  children(/** @type {number} */ node) {
    const found = [];
    for (let child = node + 1; child < this.end[node]; child = this.end[child]) found.push(child);
    return found;
  }

  /** The nodes from the root (exclusive) to the node. */
  path(/** @type {number} */ node) {
    const found = [];
    for (let at = node; at > 0; at = this.parent[at]) found.unshift(at);
    return found;
  }

  /** Draws other changes of a diff: each node as wide as what grew in it, as what shrank, or as the larger of its two sizes. */
  drawChanges(/** @type {Changes} */ changes) {
    if (changes === this.changes) return;
    this.changes = changes;
    this.layOut();
  }

  /** The change of a node that is drawn: what grew in it, what shrank, or the sum of both. */
  drawnChange(/** @type {number} */ node) {
    return this.changes === "" ? this.width[node] : this.changes === "shrinkage" ? -this.width[node] : this.change(node);
  }

  /** Growth of a node in bytes. */
  change(/** @type {number} */ node) {
    return this.before ? this.value[node] - this.before[node] : 0;
  }
}

/** The nodes depth first, siblings by name; memory without a stack and aggregates are the last siblings. */
function depthFirst(/** @type {Rows} */ rows) {
  const { parent, frame, frames } = rows;
  const last = { root: 0, function: 0, inlined: 0, unmapped: 1, cut_off: 1, no_stack: 1, not_observed: 2, below_threshold: 3, over_limit: 3 };
  const sorted = frames.map((_, i) => i).sort((a, b) => {
    const [x, y] = [frames[a], frames[b]];
    return last[x.type] - last[y.type] || compare(x.name, y.name) || compare(x.module, y.module) || compare(x.offset ?? "", y.offset ?? "") || (x.line ?? 0) - (y.line ?? 0);
  });
  const rank = new Int32Array(frames.length);
  sorted.forEach((id, i) => (rank[id] = i));
  // Linked in descending rank, so that each list begins with the lowest rank.
  const nodes = parent.map((_, i) => i).sort((a, b) => rank[frame[b]] - rank[frame[a]] || b - a);
  const first = new Int32Array(parent.length).fill(-1);
  const next = new Int32Array(parent.length).fill(-1);
  for (const node of nodes) {
    if (parent[node] < 0) continue;
    next[node] = first[parent[node]];
    first[parent[node]] = node;
  }
  const order = [];
  const stack = [parent.indexOf(-1)];
  while (stack.length) {
    const node = /** @type {number} */ (stack.pop());
    if (node < 0) continue;
    order.push(node);
    if (order.length > 1) stack.push(next[node]);
    stack.push(first[node]);
  }
  return order;
}

/** Two 32-bit FNV-1a hashes of a text. */
export function hash(/** @type {string} */ text) {
  let a = 0x811c9dc5;
  let b = 0x9dc5811c;
  for (let i = 0; i < text.length; i++) {
    a = Math.imul(a ^ text.charCodeAt(i), 0x01000193);
    b = Math.imul(b ^ text.charCodeAt(i), 0x0100018d);
  }
  return [a >>> 0, b >>> 0];
}
