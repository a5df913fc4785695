// Which nodes match a search, and the bytes below them.

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./model.js").Frame} Frame */

/**
 * A case-insensitive matcher with the rules of memprof's own search: without `*` a query matches any substring;
 * with `*`, which matches any characters, it is a pattern for the whole text.
 * @returns {((text: string) => boolean) | null} null for an empty query
 */
export function matcher(/** @type {string} */ query) {
  if (!query) return null;
  const parts = query.toLowerCase().split("*");
  if (parts.length === 1) return (text) => text.toLowerCase().includes(parts[0]);
  const [first, last] = [parts[0], parts[parts.length - 1]];
  return (text) => {
    const small = text.toLowerCase();
    if (!small.startsWith(first) || !small.endsWith(last)) return false;
    let at = first.length;
    for (const part of parts.slice(1, -1)) {
      const found = small.indexOf(part, at);
      if (found < 0) return false;
      at = found + part.length;
    }
    return at + last.length <= small.length;
  };
}

/** @typedef {{ q: string, fn: string, path: string }} What a text, or the name and the file of one function */

/** Whether a frame matches; null if nothing is searched for. @returns {((frame: Frame) => boolean) | null} */
function finder(/** @type {What} */ { q, fn, path }) {
  if (path) return (f) => f.text === fn && f.path === path;
  const matches = matcher(q);
  return matches && ((f) => Boolean((f.text && matches(f.text)) || (f.module && matches(f.module))));
}

/**
 * @returns {{ frames: Uint8Array, nodes: number[], bytes: number, error: number } | null} which frames match, the matching
 * nodes, and the bytes of all stacks with a match, with their standard error
 */
export function search(/** @type {Tree} */ tree, /** @type {What} */ what, within = 0) {
  const matches = finder(what);
  if (!matches) return null;
  const frames = Uint8Array.from(tree.frames, (f) => (matches(f) ? 1 : 0));
  const nodes = [];
  let bytes = 0;
  let error = 0;
  let counted = within;
  for (let node = within; node < tree.end[within]; node++) {
    if (!frames[tree.frame[node]]) continue;
    nodes.push(node);
    if (node < counted) continue;
    // Its value includes all descendants.
    bytes += tree.value[node];
    // Taken as independent. Nodes with memory of one mapping are not: mostly, what one has too much, another has too little.
    error = Math.hypot(error, tree.error[node]);
    counted = tree.end[node];
  }
  return { frames, nodes, bytes, error };
}
