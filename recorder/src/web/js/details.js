// The panel with the details of a row, or of a connection.

import { ApiError, message } from "./api.js";
import { hexView, tree } from "./bytes.js";
import { button, byId, copyButton, h, isNarrow, messageOf, notice, replace } from "./dom.js";
import { fullTime, number, size, visible } from "./format.js";
import { filterValue } from "./list.js";
import { linkTo, setState } from "./state.js";

/** @typedef {import("./feed.js").Row} Row */
/** @typedef {import("./api.js").MessageDetails} MessageDetails */

/** What the panel shows; a late reply for another row is dropped. */
let shown = "";

/** A list of names and values; those without a value are left out. */
export function fields(/** @type {[string, any][]} */ pairs) {
  const list = h("dl", { class: "fields" });
  for (const [name, value] of pairs) if (value !== null && value !== undefined && value !== "") list.append(h("dt", {}, name), h("dd", {}, value));
  return list;
}

/** Opens the panel. */
export function showPanel(/** @type {string} */ key, /** @type {string} */ title, /** @type {any[]} */ content) {
  shown = key;
  const panel = byId("details");
  const isNew = panel.hidden;
  panel.hidden = false;
  document.body.classList.add("with-details");
  const close = button("Close", () => dispatchEvent(new Event("close-details")), { title: "Close (Esc)", class: "small close" });
  replace(panel, h("header", {}, h("h2", {}, title), close), ...content);
  panel.scrollTop = 0;
  // On a narrow screen the panel covers the list.
  if (isNew && isNarrow()) close.focus();
}

export function closePanel() {
  shown = "";
  byId("details").hidden = true;
  document.body.classList.remove("with-details");
}

export const isPanelOpen = () => !byId("details").hidden;

/** Shows a row of the list. */
export function showRow(/** @type {Row} */ row) {
  setState({ row: row.key });
  if (row.type === "log") showLog(row);
  else showMessage(String(row.id), row);
}

/** Shows the row that a link names. */
export function showLinked(/** @type {string} */ key) {
  const [, id] = /^message-(\d+)$/.exec(key) ?? [];
  if (id) showMessage(id, null);
}

function showLog(/** @type {Row} */ row) {
  showPanel(row.key, `Log: ${row.level}`, [
    fields([["Time", fullTime(row.time)], ["Level", filterValue("levels", row.level)], ["Section", visible(row.section)], ["Id", row.id]]),
    h("pre", { class: "log-text", tabIndex: 0, role: "region", "aria-label": "Text" }, visible(row.message)),
    h("p", { class: "actions" }, copyButton("Copy text", () => row.message), around(row)),
  ]);
}

/** A link to everything in the seconds around a row. */
function around(/** @type {Row} */ row) {
  const changes = { from: String(row.time_ms - 5000), to: String(row.time_ms + 5000), kinds: "", category: "", incoming: "", initiator: "", address: "", host: "", peer: "", connection: "", hash: "", error: "", levels: "", query: "", view: "all" };
  return button("± 5 s around it", () => setState(changes));
}

async function showMessage(/** @type {string} */ id, /** @type {Row | null} */ row) {
  const key = `message-${id}`;
  showPanel(key, row ? titleOf(row) : `Message ${id}`, [row && summary(row), h("p", { class: "faint", role: "status" }, "Loading…")]);
  /** @type {MessageDetails} */
  let details;
  try {
    details = await message(id);
  } catch (error) {
    if (shown !== key) return;
    const isAbsent = error instanceof ApiError && error.status === 404;
    if (isAbsent) showPanel(key, `Message ${id}`, [notice("Not stored", `${messageOf(error)}. It may have been removed because the store had reached its limit.`)]);
    else showPanel(key, `Message ${id}`, [notice("Not loaded", messageOf(error), "error", button("Try again", () => showMessage(id, row)))]);
    return;
  }
  if (shown !== key) return;
  showPanel(key, titleOf(details), messageContent(details));
}

const titleOf = (/** @type {any} */ row) => `${row.incoming ? "←" : "→"} ${row.kind}`;

/** The name of a side as the page uses it. */
export const openedBy = (/** @type {string | null} */ initiator) => ({ local: "the node", remote: "the peer" })[initiator ?? ""] ?? "unknown";

function summary(/** @type {any} */ row) {
  return fields([
    ["Error", row.error && h("span", { class: "bad-text" }, visible(row.error))],
    ["Time", fullTime(row.time)],
    ["Direction", filterValue("incoming", String(row.incoming), row.incoming ? "received from the peer" : "sent by the node")],
    ["Kind", filterValue("kinds", row.kind)],
    ["Category", filterValue("category", row.category)],
    ["Hash", row.hash && filterValue("hash", row.hash)],
    ["Size", `${number(row.size)} bytes`],
    ["Peer", row.peer_id && filterValue("peer", row.peer_id)],
    ["Address", h("span", {}, filterValue("address", row.address), " ", filterValue("host", hostOf(row.address), "any port"))],
    ["Connection", h("span", {}, filterValue("connection", row.connection), " ", h("a", { href: linkTo({ view: "connections", row: `connection-${row.connection}` }) }, "details"))],
    ["Opened by", row.initiator ? filterValue("initiator", row.initiator, openedBy(row.initiator)) : "unknown"],
    ["Id", row.id],
  ]);
}

/** The address without its port. */
export const hostOf = (/** @type {string} */ address) => address.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");

function messageContent(/** @type {MessageDetails} */ details) {
  const columns = isNarrow() ? 8 : 16;
  const cut = details.cut && h("p", { class: "warn note" }, `Only a part of the bytes is here: ${size(details.plain.length / 2)} plain, ${size(details.raw.length / 2)} encrypted. The rest is beyond the limit of a reply, or not stored any more.`);
  const undecoded = details.message_cut ? "Not shown: the JSON is longer than 5 MiB." : "Not decoded.";
  return [
    summary(details),
    section("Content", details.message === null ? h("p", { class: "faint" }, undecoded) : tree(details.message), details.message !== null && copyButton("Copy JSON", () => JSON.stringify(details.message, null, 2))),
    cut,
    bytesSection("Plain bytes", details.plain, columns, "No plain bytes: the chunks of this message are not stored, or could not be decrypted."),
    bytesSection("Captured bytes", details.raw, columns, "No captured bytes: the recorder does not store them (raw = false), or they were removed."),
    h("p", { class: "actions" }, copyButton("Copy link", () => location.href), around(/** @type {any} */ (details))),
  ];
}

function section(/** @type {string} */ title, /** @type {any} */ content, /** @type {any} */ action) {
  return h("section", {}, h("header", {}, h("h3", {}, title), action), content);
}

function bytesSection(/** @type {string} */ title, /** @type {string} */ digits, /** @type {number} */ columns, /** @type {string} */ none) {
  if (!digits) return section(title, h("p", { class: "faint" }, none), null);
  return section(`${title}: ${number(digits.length / 2)}`, hexView(digits, columns, title), copyButton("Copy hex", () => digits));
}
