// Colours of nodes, by theme: one colour per file, warm for the program's own files, cool for libraries. The SVG export
// (svg/colour.rs) uses the same colours.

import { colour, isDark } from "../theme.js";
import { hash } from "./model.js";

/** @typedef {import("./model.js").Tree} Tree */
/** @typedef {import("./model.js").Frame} Frame */

/** The colours of the theme that the canvases use. */
export function theme() {
  return { text: colour("text"), back: colour("back"), focus: colour("focus"), hit: colour("hit"), dark: isDark() };
}

/** Hues of libraries, far enough apart to be told from each other, from the program's own files and from search hits. */
const HUES = [135, 182, 216, 258];
/** Files that are often side by side, by the start of their names, with places in the palette that differ much. */
const KNOWN = /** @type {[string, number][]} */ ([["libc.", 6], ["libc-", 6], ["ld-", 3], ["libpython", 1], ["libruby", 1], ["libjvm", 1], ["libstdc++", 7], ["<frozen", 4]]);

/** The colour of a file, on a light and on a dark page. It depends on the name only, so that it is the same in every view. */
export function fileColours(/** @type {string} */ module, /** @type {boolean} */ own) {
  const [h1, h2] = hash(module);
  if (own) return [`hsl(${22 + (h1 % 20)} 88% 71%)`, `hsl(${20 + (h1 % 20)} 50% 31%)`];
  const place = KNOWN.find(([start]) => module.startsWith(start))?.[1] ?? h2 % (2 * HUES.length);
  const hue = HUES[place % HUES.length];
  return place < HUES.length ? [`hsl(${hue} 50% 72%)`, `hsl(${hue} 36% 26%)`] : [`hsl(${hue} 60% 84%)`, `hsl(${hue} 22% 38%)`];
}

/** The fill of a frame, without regard to changes. */
function frameFill(/** @type {Frame} */ frame, /** @type {boolean} */ dark) {
  if (frame.type === "below_threshold" || frame.type === "over_limit") return dark ? "hsl(220 5% 27%)" : "hsl(220 8% 86%)";
  if (frame.type === "not_observed" || frame.type === "cut_off" || frame.type === "no_stack" || frame.type === "unmapped") return dark ? "hsl(220 6% 34%)" : "hsl(220 10% 79%)";
  if (frame.type === "root") return dark ? "hsl(215 12% 32%)" : "hsl(215 20% 84%)";
  return fileColours(frame.module, Boolean(frame.own))[dark ? 1 : 0];
}

/** A fill per frame of a tree. */
export function fills(/** @type {Tree} */ tree, /** @type {boolean} */ dark) {
  return tree.frames.map((frame) => frameFill(frame, dark));
}

/** A node's fill in a diff: red for growth, blue for shrinking, stronger for a larger share of the node. */
export function changeFill(/** @type {Tree} */ tree, /** @type {number} */ node, /** @type {boolean} */ dark) {
  const change = tree.drawnChange(node);
  if (change === 0) return dark ? "hsl(220 5% 30%)" : "hsl(220 8% 88%)";
  const whole = tree.changes === "all" ? tree.width[node] : Math.max(tree.value[node], tree.before?.[node] ?? 0);
  const share = Math.min(1, Math.abs(change) / Math.max(1, whole));
  const hue = change > 0 ? 6 : 214;
  return dark ? `hsl(${hue} ${30 + 35 * share}% ${28 + 10 * share}%)` : `hsl(${hue} ${45 + 40 * share}% ${88 - 22 * share}%)`;
}
