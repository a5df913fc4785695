// Keyboard navigation in a tree.

/** @typedef {import("./model.js").Tree} Tree */

/**
 * The effect of a key: [action, node], or null for other keys.
 * @param {Tree} tree
 * @param {number} node the selected node
 * @param {number} zoom the node that fills the width
 * @param {string} key `KeyboardEvent.key`
 * @param {boolean} upward whether children are above their parent
 * @returns {["select" | "zoom", number] | null}
 */
export function keyAction(tree, node, zoom, key, upward) {
  const at = node < 0 ? zoom : node;
  const [toChild, toParent] = upward ? ["ArrowUp", "ArrowDown"] : ["ArrowDown", "ArrowUp"];
  switch (key) {
    case toChild:
      return ["select", largest(tree, at) ?? at];
    case toParent:
      return ["select", Math.max(0, tree.parent[at])];
    case "ArrowLeft":
      return ["select", sibling(tree, at, -1)];
    case "ArrowRight":
      return ["select", sibling(tree, at, 1)];
    case "Home":
      return ["select", zoom];
    case "Enter":
    case " ":
      return ["zoom", at];
    case "Backspace":
      return ["zoom", Math.max(0, tree.parent[zoom])];
    default:
      return null;
  }
}

function largest(/** @type {Tree} */ tree, /** @type {number} */ node) {
  return tree.children(node).sort((a, b) => tree.width[b] - tree.width[a])[0];
}

function sibling(/** @type {Tree} */ tree, /** @type {number} */ node, /** @type {number} */ by) {
  if (node <= 0) return node;
  const all = tree.children(tree.parent[node]).filter((n) => tree.width[n] > 0);
  return all[all.indexOf(node) + by] ?? node;
}
