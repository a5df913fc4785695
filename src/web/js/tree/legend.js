// The legend: which colour is which file, and how much memory its functions are behind.

import { fill, h } from "../dom.js";
import { estimate } from "../format.js";
import { atLine } from "../glossary.js";
import { fileColours } from "./colours.js";

/** @typedef {import("./model.js").Tree} Tree */

/** Maximum number of files shown. */
const MOST = 6;

const WHAT = "What the stacks hold that contain a function of the file. A stack counts for each of its files.";
const CHANGES = /** @type {[string, string, string][]} */ ([
  ["hsl(6 85% 66%)", "hsl(6 65% 38%)", "grew"],
  ["hsl(214 85% 66%)", "hsl(214 65% 38%)", "shrank"],
  ["hsl(220 8% 88%)", "hsl(220 5% 30%)", "unchanged"],
]);

function swatch(/** @type {string} */ light, /** @type {string} */ dark) {
  const element = h("i", { class: "swatch" });
  element.style.background = `light-dark(${light}, ${dark})`;
  return element;
}

/** A file's name with its colour. */
export function fileName(/** @type {string} */ module, /** @type {boolean} */ own, /** @type {number | null | undefined} */ line = null) {
  if (!module) return "";
  const [light, dark] = fileColours(module, own);
  return h("span", {}, swatch(light, dark), atLine(module, line));
}

/** Shows the meaning of the colours below a node. */
export function legend(/** @type {Element} */ element, /** @type {Tree} */ tree, /** @type {number} */ zoom) {
  if (tree.isDiff) return fill(element, ...CHANGES.map(([light, dark, text]) => h("span", {}, swatch(light, dark), text)));
  const files = totals(tree, zoom).sort((a, b) => b.total - a.total);
  const more = files.length - MOST;
  fill(
    element,
    files.length > 0 && h("span", { class: "faint", title: WHAT }, "Stacks through"),
    ...files.slice(0, MOST).map(({ module, own, total, error }) => h("span", { title: `${module}: ${WHAT}` }, fileName(module, own), ` ${estimate(total, error, tree.unit)}`)),
    more > 0 && h("span", { class: "faint" }, `and ${more} more ${more === 1 ? "file" : "files"}`),
  );
}

/** For each file, the bytes of the stacks below a node with a frame of the file, each stack once. */
function totals(/** @type {Tree} */ tree, /** @type {number} */ zoom) {
  const ids = new Map();
  const files = /** @type {{ module: string, own: boolean, total: number, error: number, end: number }[]} */ ([]);
  const file = tree.frames.map(({ type, module, own }) => {
    if ((type !== "function" && type !== "inlined") || !module) return -1;
    if (!ids.has(module)) ids.set(module, files.push({ module, own: Boolean(own), total: 0, error: 0, end: 0 }) - 1);
    return ids.get(module);
  });
  const add = (/** @type {number} */ node) => {
    const at = files[file[tree.frame[node]]];
    // Up to `end`, all nodes are below one of the same file.
    if (!at || node < at.end) return;
    const counted = zoom <= node ? node : zoom;
    at.total += tree.value[counted];
    // Taken as independent, as in a search.
    at.error = Math.hypot(at.error, tree.error[counted]);
    at.end = tree.end[node];
  };
  for (const node of tree.path(zoom)) add(node);
  for (let node = zoom + 1; node < tree.end[zoom]; node++) add(node);
  return files.filter(({ total }) => total > 0);
}
