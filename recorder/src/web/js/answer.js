// The first sentence: the node, what was recorded, and what was lost or could not be decrypted.

import { get } from "./api.js";
import { byId, h, replace } from "./dom.js";
import { count, msOf, size, visible, when } from "./format.js";
import { linkTo, setState, setUsualNode, state } from "./state.js";

/** @typedef {import("./api.js").Node} Node */

/** What the sentence is made of. @type {{ nodes: Node[], node: Node | undefined, health: any }} */
export const known = { nodes: [], node: undefined, health: null };

/** Fetches nodes and health. Throws if the recorder does not answer. */
export async function refreshAnswer() {
  known.nodes = (await get("nodes")).items;
  known.node = known.nodes.find((node) => node.name === state.node) ?? known.nodes[0];
  setUsualNode(known.nodes[0]?.name ?? "");
  if (!known.node) return draw();
  known.health = await get("health").catch(() => null);
  draw();
}

/** What the recorder itself lost, or cannot do, apart from single connections. */
function ownLosses() {
  const { capture, nodes } = known.health ?? {};
  const store = nodes?.find((/** @type {any} */ { name }) => name === known.node?.name);
  /** @type {[number | undefined, string][]} */
  const counts = [[capture?.lost_events, "lost event"], [capture?.dropped_events, "dropped event"], [capture?.unread_packets, "unread packet"], [capture?.skipped_events, "skipped event"], [capture?.missed_calls, "missed system call"], [store?.dropped, "dropped record"], [store?.failed, "unwritten record"], [store?.damaged_files?.length, "damaged file"]];
  const lost = counts.filter(([value]) => value).map(([value, noun]) => count(value ?? 0, noun));
  return [...lost, ...(capture?.problems ?? []).map((/** @type {string} */ text) => visible(text, 150))];
}

/** The parts of the second sentence: what is missing in all connections that are stored. */
function troubles() {
  const losses = known.node?.losses;
  if (!losses) return ownLosses();
  const { bytes, connections, unrecorded, undecryptable, partly_decrypted: partly } = losses;
  return [
    bytes > 0 && `${size(bytes)} lost in ${count(connections, "connection")}`,
    unrecorded > 0 && `${count(unrecorded, "connection")} not recorded`,
    undecryptable > 0 && `${count(undecryptable, "connection")} not decrypted`,
    partly > 0 && `${count(partly, "connection")} partly decrypted`,
    ...ownLosses(),
  ].filter((part) => part !== false);
}

/** Whether the node's identity is not known; then `identity` says why. */
export const isAwaited = (/** @type {Node} */ { identity }) => identity !== "" && identity !== "known";

function draw() {
  const { node, nodes } = known;
  drawNodes(nodes);
  if (!node) return replace(byId("answer"), "No node is configured.");
  const strong = (/** @type {any} */ text) => h("strong", { title: node.peer_id ?? "" }, text);
  const name = h("span", {}, "Node ", strong(node.name), ": ");
  document.title = `${node.name}: ${count(node.messages, "message")} – network recorder`;
  if (!node.messages) return replace(byId("answer"), name, isAwaited(node) ? `${visible(node.identity, 200)}.` : "no message recorded yet.", ...second());
  const since = node.first_time ? ` since ${when(msOf(node.first_time))}` : "";
  replace(byId("answer"), name, strong(count(node.messages, "message")), ` from ${count(node.peers, "peer")}${since}.`, ...second());
}

/** The sentence about losses; a link to the connections, if there are any. */
function second() {
  const parts = troubles();
  if (!parts.length) return [known.node?.messages ? " Nothing was lost." : ""];
  return [" ", h("a", { href: linkTo({ view: "connections", row: "" }), class: "losses" }, `${parts.join(", ")}.`)];
}

/** The selector, if there are several nodes. */
function drawNodes(/** @type {Node[]} */ nodes) {
  const box = byId("node");
  box.hidden = nodes.length < 2;
  const names = nodes.map(({ name }) => name);
  if (box.dataset.names !== JSON.stringify(names)) {
    box.dataset.names = JSON.stringify(names);
    replace(box, ...names.map((name) => h("option", { value: name }, name)));
    box.onchange = () => setState({ node: box.value, row: "", connection: "" });
  }
  if (known.node) box.value = known.node.name;
}
