// Colours of nodes, by theme: warm for the program's own code, a cool hue per library.

import { colour, isDark } from "../theme.js";
import { hash } from "./model.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./model.js").Frame} Frame */

/** The colours of the theme that the canvases use. */
export function theme() {
  return { text: colour("text"), back: colour("back"), focus: colour("focus"), hit: colour("hit"), dark: isDark() };
}

/** Hues of libraries: cool, distinct from those of the program's own code and of search hits. */
const LIBRARIES = [200, 160, 222, 130, 250, 178, 210, 145, 236, 190];

function plain(/** @type {Frame} */ frame, /** @type {boolean} */ dark) {
  if (frame.type === "below_threshold" || frame.type === "over_limit") return dark ? "hsl(220 5% 27%)" : "hsl(220 8% 86%)";
  if (frame.type === "not_observed" || frame.type === "cut_off" || frame.type === "no_stack" || frame.type === "unmapped") return dark ? "hsl(220 6% 34%)" : "hsl(220 10% 79%)";
  if (frame.type === "root") return dark ? "hsl(215 12% 32%)" : "hsl(215 20% 84%)";
  const [h1, h2] = hash(frame.module + (frame.own ? frame.name : ""));
  const shade = hash(frame.name)[1] % 8;
  if (frame.own) return dark ? `hsl(${20 + (h1 % 20)} 48% ${30 + shade}%)` : `hsl(${24 + (h1 % 22)} 88% ${67 + shade}%)`;
  const hue = LIBRARIES[h2 % LIBRARIES.length];
  return dark ? `hsl(${hue} 26% ${28 + shade}%)` : `hsl(${hue} 48% ${74 + shade}%)`;
}

/** A fill per frame of a tree. */
export function fills(/** @type {Tree} */ tree, /** @type {boolean} */ dark) {
  return tree.frames.map((frame) => plain(frame, dark));
}

/** A node's fill in a diff: red for growth, blue for shrinking, stronger for a larger share of the node. */
export function changeFill(/** @type {Tree} */ tree, /** @type {number} */ node, /** @type {boolean} */ dark) {
  const change = tree.change(node);
  if (change === 0) return dark ? "hsl(220 5% 30%)" : "hsl(220 8% 88%)";
  const share = Math.min(1, Math.abs(change) / Math.max(1, tree.width[node]));
  const hue = change > 0 ? 6 : 214;
  return dark ? `hsl(${hue} ${30 + 35 * share}% ${28 + 10 * share}%)` : `hsl(${hue} ${45 + 40 * share}% ${88 - 22 * share}%)`;
}
