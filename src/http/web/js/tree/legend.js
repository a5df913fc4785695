// The legend: the colour of each file, and the memory of the stacks through it.

import { h, replace } from "../dom.js";
import { estimate } from "../format.js";
import { fileAndLine } from "../glossary.js";
import { fileColours } from "./colours.js";

/** @typedef {import("./model.js").Tree} Tree */

/** Maximum number of files in the legend. */
const MAX_FILES = 6;

const ABOUT = "Memory of the stacks that contain a function of the file. A stack counts for each of its files.";
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
export function colouredFile(/** @type {string} */ module, /** @type {boolean} */ own, /** @type {number | null | undefined} */ line = null) {
  if (!module) return "";
  const [light, dark] = fileColours(module, own);
  return h("span", {}, swatch(light, dark), fileAndLine(module, line));
}

/** Shows the legend of the colours below a node. */
export function showLegend(/** @type {Element} */ element, /** @type {Tree} */ tree, /** @type {number} */ zoom) {
  if (tree.isDiff) return replace(element, ...CHANGES.filter((_, i) => tree.changes === "all" || i === (tree.changes ? 1 : 0)).map(([light, dark, text]) => h("span", {}, swatch(light, dark), text)));
  const files = fileTotals(tree, zoom).sort((a, b) => b.total - a.total);
  const more = files.length - MAX_FILES;
  replace(
    element,
    files.length > 0 && h("span", { class: "faint", title: ABOUT }, "Stacks through"),
    ...files.slice(0, MAX_FILES).map(({ module, own, total, error }) => h("span", { title: `${module}: ${ABOUT}` }, colouredFile(module, own), ` ${estimate(total, error, tree.unit)}`)),
    more > 0 && h("span", { class: "faint" }, `and ${more} more ${more === 1 ? "file" : "files"}`),
  );
}

/** For each file, the bytes of the stacks below a node with a frame of the file. Each stack counts once. */
function fileTotals(/** @type {Tree} */ tree, /** @type {number} */ zoom) {
  const ids = new Map();
  const files = /** @type {{ module: string, own: boolean, total: number, error: number, end: number }[]} */ ([]);
  const file = tree.frames.map(({ type, module, own }) => {
    if ((type !== "function" && type !== "inlined") || !module) return -1;
    if (!ids.has(module)) ids.set(module, files.push({ module, own: Boolean(own), total: 0, error: 0, end: 0 }) - 1);
    return ids.get(module);
  });
  const add = (/** @type {number} */ node) => {
    const at = files[file[tree.frame[node]]];
    // Nodes before `end` are below a node of the same file, which is counted.
    if (!at || node < at.end) return;
    const counted = zoom <= node ? node : zoom;
    at.total += tree.value[counted];
    // The errors are taken as independent, as in a search.
    at.error = Math.hypot(at.error, tree.error[counted]);
    at.end = tree.end[node];
  };
  for (const node of tree.path(zoom)) add(node);
  for (let node = zoom + 1; node < tree.end[zoom]; node++) add(node);
  return files.filter(({ total }) => total > 0);
}
