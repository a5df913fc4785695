// The search in a tree: matching nodes, and the bytes of their stacks.

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

/** @typedef {{ q: string, fn: string, path: string }} Query a text `q`, or the name and the file of one function */

/** Tests whether a frame matches; null for an empty query. @returns {((frame: Frame) => boolean) | null} */
function frameMatcher(/** @type {Query} */ { q, fn, path }) {
  if (path) return (f) => f.text === fn && f.path === path;
  const matches = matcher(q);
  return matches && ((f) => Boolean((f.text && matches(f.text)) || (f.module && matches(f.module))));
}

/**
 * @returns {{ frames: Uint8Array, nodes: number[], bytes: number, error: number } | null} 1 for each matching frame, the
 * matching nodes, and the bytes of all stacks with a match, with their standard error; null for an empty query
 */
export function search(/** @type {Tree} */ tree, /** @type {Query} */ query, within = 0) {
  const matches = frameMatcher(query);
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
    // The value includes all descendants.
    bytes += tree.value[node];
    // The errors are taken as independent. Errors of nodes with memory of one mapping are not: mostly they cancel out.
    error = Math.hypot(error, tree.error[node]);
    counted = tree.end[node];
  }
  return { frames, nodes, bytes, error };
}
