// The connections with their states, and the details of one.

import { connection, get } from "./api.js";
import { tree } from "./bytes.js";
import { button, h, messageOf, notice, replace } from "./dom.js";
import { count, duration, fullTime, msOf, number, size, visible, when } from "./format.js";
import { fields, hostOf, openedBy, showPanel } from "./details.js";
import { filterValue } from "./list.js";
import { clearFilters, connectionParameters, setState, state } from "./state.js";

/** @typedef {import("./api.js").Connection} Connection */

const PAGE = 200;

/** Ends of connections, in words. @type {Record<string, string>} */
const ENDS = { open: "open", seen: "ended", unseen: "end not seen" };

/** States that say more than whether the connection has ended: their names and classes. @type {Record<string, [string, string]>} */
const STATES = { ignored: ["ignored", "plain"], unrecorded: ["not recorded", "warn"], undecryptable: ["not decrypted", "bad"], partly_decrypted: ["partly decrypted", "bad"], refused: ["refused", "plain"] };

/** The state of a connection: a name, a class, and the reason. @returns {[string, string, string]} */
export function stateOf(/** @type {Connection} */ { state, reason, ignored, end, bytes }) {
  const known = STATES[state];
  if (known) return [...known, ignored ?? (reason ?? "").replaceAll("_", " ")];
  const ended = ENDS[end] ?? end;
  if (bytes.lost) return [`${ended}, gaps`, "warn", `${number(bytes.lost)} bytes were not captured`];
  if (end === "open") return state === "handshake" ? ["handshake", "plain", "not both sides have accepted yet"] : [ended, "good", ""];
  return [ended, "plain", state === "handshake" ? "not both sides had accepted" : ""];
}

/** The version that both sides use, from their connection messages. */
function versionOf(/** @type {any} */ versions) {
  const version = (versions?.remote ?? versions?.local)?.version;
  if (!version?.chain_name) return "";
  return `${visible(version.chain_name, 60)} db ${version.distributed_db_version} p2p ${version.p2p_version}`;
}

/** The messages of the handshake that are known. */
function handshake(/** @type {Connection} */ { versions, metadata, acks }) {
  /** @type {[string, import("./api.js").Sides][]} */
  const parts = [["Connection messages", versions], ["Metadata", metadata], ["Answers to the handshake", acks]];
  const known = parts.filter(([, { local, remote }]) => local !== null || remote !== null);
  return known.map(([title, { local, remote }]) => h("section", {}, h("h3", {}, title), tree({ "by the node": local, "by the peer": remote })));
}

export class Connections {
  constructor() {
    this.element = h("div", { class: "connections" });
    /** @type {Connection[]} */
    this.items = [];
    /** @type {string | null} */
    this.next = null;
    /** Whether further pages were loaded, which a refresh would drop. */
    this.isExtended = false;
  }

  /** Loads the newest connections. */
  async refresh() {
    const wanted = JSON.stringify(connectionParameters());
    try {
      const page = await get("connections", { ...connectionParameters(), direction: "backward", limit: PAGE });
      if (wanted !== JSON.stringify(connectionParameters())) return;
      [this.items, this.next, this.isExtended] = [page.items, page.next ?? null, false];
      this.draw();
      this.showLinked();
    } catch (error) {
      if (!this.items.length) replace(this.element, notice("Connections cannot be loaded", messageOf(error), "error", button("Try again", () => this.refresh())));
    }
  }

  async more() {
    const page = await get("connections", { ...connectionParameters(), direction: "backward", limit: PAGE, cursor: this.next });
    this.items.push(...page.items);
    [this.next, this.isExtended] = [page.next ?? null, true];
    this.draw();
  }

  draw() {
    if (!this.items.length) return replace(this.element, this.empty());
    const names = ["State", "Peer", "Peer id", "Opened by", "Since", "Lasted", "Sent", "Received", "Lost", "Version", "Remarks"];
    const body = h("tbody", {}, ...this.items.map((item) => this.row(item)));
    const numeric = new Set(["Sent", "Received", "Lost", "Remarks"]);
    const table = h("table", {}, h("caption", { class: "skip" }, "Connections, newest first"), h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col", class: numeric.has(name) ? "number" : "" }, name)))), body);
    const more = this.next !== null && button("Older connections", () => this.more());
    replace(this.element, h("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Connections" }, table), more);
  }

  empty() {
    const filtered = state.host || state.peer;
    if (filtered) return notice("No connection matches the filter", "The address and the peer's id select connections.", "", button("Remove the filters", clearFilters));
    return notice("No connection yet", "The recorder lists a connection as soon as it sees a byte of it. It sees none if the node has no peers, or runs in another control group than the one that is recorded: `tezos-recorder doctor` checks that.");
  }

  row(/** @type {Connection} */ item) {
    const [name, kind, why] = stateOf(item);
    const opened = msOf(item.id);
    const ended = msOf(item.ended ?? item.last);
    return h("tr", { "data-connection": item.id, class: state.row === `connection-${item.id}` ? "current" : "" },
      h("td", {}, h("button", { type: "button", class: `badge ${kind}`, title: why, onclick: () => this.select(item) }, name)),
      h("td", {}, filterValue("host", hostOf(item.address), item.address)),
      h("td", { class: "mono" }, item.peer_id ? filterValue("peer", item.peer_id, `${item.peer_id.slice(0, 10)}…`) : "unknown"),
      h("td", {}, openedBy(item.initiator)),
      h("td", { title: fullTime(item.id) }, when(opened)),
      h("td", {}, duration(ended - opened)),
      h("td", { class: "number" }, size(item.bytes.sent)),
      h("td", { class: "number" }, size(item.bytes.received)),
      h("td", { class: `number${item.bytes.lost ? " warn-text" : ""}` }, item.bytes.lost ? size(item.bytes.lost) : "0"),
      h("td", {}, versionOf(item.versions)),
      h("td", { class: "number" }, number(item.remarks.length)));
  }

  select(/** @type {Connection} */ item) {
    setState({ row: `connection-${item.id}` });
    for (const row of this.element.querySelectorAll("tr[data-connection]")) row.classList.toggle("current", row.dataset.connection === item.id);
    this.show(item);
  }

  /** Shows the connection that the address names. */
  async showLinked() {
    const [, id] = /^connection-(\d+)$/.exec(state.row) ?? [];
    if (!id) return;
    const item = this.items.find((item) => item.id === id) ?? (await connection(id).catch(() => null));
    if (item && state.row === `connection-${id}`) this.show(item);
  }

  show(/** @type {Connection} */ item) {
    const [name, kind, why] = stateOf(item);
    const content = [
      fields([
        ["State", h("span", {}, h("b", { class: `badge ${kind}` }, name), why && ` ${visible(why)}`)],
        ["Peer", item.peer_id ? filterValue("peer", item.peer_id) : "unknown"],
        ["Opened by", openedBy(item.initiator)],
        ["Opened", fullTime(item.id)],
        ["Last byte", fullTime(item.last)],
        ["Ended", item.ended ? fullTime(item.ended) : item.end === "unseen" && "not seen: the recorder stopped to follow the connection before"],
        ["Sent", `${number(item.bytes.sent)} bytes in ${count(item.chunks.sent, "chunk")}`],
        ["Received", `${number(item.bytes.received)} bytes in ${count(item.chunks.received, "chunk")}`],
        ["Lost", `${number(item.bytes.lost)} bytes in ${count(item.bytes.gaps, "gap")}`],
      ]),
      h("p", { class: "actions" }, button("Messages of this connection", () => setState({ view: "messages", connection: item.id, row: "" }))),
      ...handshake(item),
      h("section", {}, h("h3", {}, count(item.remarks.length, "remark")), h("ol", { class: "remarks" }, ...item.remarks.map(({ time, text }) => h("li", {}, h("time", {}, `${fullTime(time)} `), visible(text))))),
    ];
    showPanel(`connection-${item.id}`, `Connection with ${visible(item.address)}`, content);
  }
}
