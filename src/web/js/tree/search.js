// Which nodes match a search, and how many bytes stand under them.

/** @typedef {import("./model.js").Tree} Tree */

/**
 * Whether a text matches, as memprof's own search does: without `*` a part of it, in any case; with
 * `*` a pattern for all of it, where `*` stands for any characters.
 * @returns {((text: string) => boolean) | null} null for nothing to search
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

/**
 * @returns {{ frames: Uint8Array, nodes: number, bytes: number } | null} which frames match, how many nodes
 * they are, and the bytes of all stacks that hold a match
 */
export function search(/** @type {Tree} */ tree, /** @type {string} */ query, within = 0) {
  const matches = matcher(query);
  if (!matches) return null;
  const frames = Uint8Array.from(tree.frames, (f) => ((f.text && matches(f.text)) || (f.module && matches(f.module)) ? 1 : 0));
  let nodes = 0;
  let bytes = 0;
  let counted = within;
  for (let node = within; node < tree.end[within]; node++) {
    if (!frames[tree.frame[node]]) continue;
    nodes++;
    if (node < counted) continue;
    // What is below is in it already.
    bytes += tree.value[node];
    counted = tree.end[node];
  }
  return { frames, nodes, bytes };
}
