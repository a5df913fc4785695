// The page of the network recorder: what happens when the state changes, keys, and what is shown when nothing can be shown.

import { isAwaited, known, refreshAnswer } from "./js/answer.js";
import { ApiError, hasToken, save, setToken, takeToken, urlOf } from "./js/api.js";
import { Connections } from "./js/connections.js";
import { closePanel, isPanelOpen, showLinked, showRow } from "./js/details.js";
import { button, byId, h, messageOf, notice, replace, setText } from "./js/dom.js";
import { Feed } from "./js/feed.js";
import { addFilter, drawChips, startFilters } from "./js/filters.js";
import { visible } from "./js/format.js";
import { showHelp } from "./js/help.js";
import { List } from "./js/list.js";
import { clearFilters, isFiltered, linkTo, messageParameters, nodeName, readAddress, setState, showsMessages, state, VIEWS } from "./js/state.js";
import { watchTheme } from "./js/theme.js";

/** Interval between refreshes of the first sentence and of the connections, in ms. */
const REFRESH_MS = 3000;

const feed = new Feed({ changed: () => list.changed(), connection: showConnection, isHeld: () => list.isHeld || Boolean(state.pause) });
const list = new List(feed, { select: (row) => (row ? showRow(row) : closeDetails()), empty: emptyNotice });
const connections = new Connections();

/** The node whose records are shown. @type {string | null} */
let shownNode = null;

/** The chip that says whether the page follows the recorder. */
function showConnection(/** @type {string} */ status, /** @type {string} */ why) {
  const chip = byId("connection");
  if (state.pause) status = "paused";
  setText(chip, { live: "live", paused: "paused", lost: "connection lost", refused: "refused" }[status] ?? status);
  chip.className = `chip ${{ lost: "bad", refused: "bad", paused: "warn" }[status] ?? ""}`;
  const isBad = status === "lost" || status === "refused";
  const banner = byId("banner");
  banner.hidden = !isBad;
  if (isBad) replace(banner, h("strong", {}, status === "lost" ? "Connection lost. " : "The recorder refuses this request. "), `${why} `, status === "lost" ? "The page keeps trying; what you see may be old." : button(isFiltered() ? "Remove the filters" : "Try again", () => (isFiltered() ? clearFilters() : show())));
}

/** Shows why the list is empty, and what to do. */
function emptyNotice() {
  if (feed.error) return notice("The list cannot be loaded", feed.error, "error", button("Try again", () => feed.restart()));
  const { node, nodes } = known;
  if (!node && !nodes.length) return notice("No node is configured", "Name one in the configuration, or start the recorder with --identity FILE.");
  if (isFiltered()) return notice("Nothing matches the filters", "New rows that match appear here as they come.", "", button("Remove the filters", clearFilters));
  if (node && isAwaited(node)) return notice("Waiting for the node's identity", `${visible(node.identity, 200)}. The recorder keeps the handshakes of connections until it is known, so none is lost.`);
  if (showsMessages()) return notice("No message yet", "A message appears here when the node has a handshake with a peer. Connections that were opened before the recorder cannot be decrypted; they are read after their next handshake.", "", h("a", { href: linkTo({ view: "connections" }) }, "Connections"));
  return notice("No line of the log yet", "The recorder receives lines by syslog, from a file, or from the journal, as the configuration says.");
}

/** Shows what the state selects. */
function show() {
  if (byId("token")) return;
  shownNode = nodeName();
  const isList = state.view !== "connections";
  const links = VIEWS.map(([view, name], index) => h("a", { href: linkTo({ view, row: "" }), title: `(${index + 1})`, "data-name": name, "aria-current": view === state.view ? "page" : null }, name));
  replace(byId("tabs"), ...links);
  drawChips();
  byId("export").href = urlOf("export.pcapng", messageParameters());
  byId("export").download = `${nodeName() || "recording"}.pcapng`;
  replace(byId("content"), isList ? list.element : connections.element);
  drawPause();
  list.cursor = state.row;
  if (!state.row) closePanel();
  if (isList) feed.restart();
  else {
    feed.disconnect();
    connections.refresh();
  }
  if (isList && state.row) showLinked(state.row);
}

function drawPause() {
  const pause = byId("pause");
  pause.setAttribute("aria-pressed", Boolean(state.pause));
  setText(pause, state.pause ? "Resume" : "Pause");
}

function togglePause() {
  setState({ pause: state.pause ? "" : "1" });
  drawPause();
  showConnection("live", "");
}

function closeDetails() {
  closePanel();
  setState({ row: "" });
}

function leaveDetails() {
  list.cursor = "";
  closeDetails();
  list.changed();
  byId("list")?.focus();
}

/** Asks for the token that the recorder requires. */
function askForToken() {
  if (byId("token")) return;
  const input = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    setToken(input.value);
    location.reload();
  };
  const form = h("form", { class: "notice", onsubmit: submit }, h("h2", {}, "Token"), h("p", {}, hasToken() ? "The recorder does not accept this token." : "This recorder requires a token."), h("label", { for: "token" }, "Token "), input, " ", h("button", {}, "Open"));
  replace(byId("content"), form);
  input.focus();
}

/** Refreshes the first sentence and the connections, as long as the page is visible. */
async function refresh() {
  try {
    if (!document.hidden || shownNode === null) {
      await refreshAnswer();
      // Requests name the node, which is known only now.
      if (shownNode !== nodeName()) show();
      if (!feed.rows.length) list.changed();
      if (state.view === "connections") {
        showConnection("live", "");
        if (!state.pause && !connections.isExtended) await connections.refresh();
      }
    }
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return askForToken();
    if (shownNode === null) show();
    showConnection("lost", messageOf(error));
  }
  setTimeout(refresh, REFRESH_MS);
}

/** What keys do. @type {Record<string, () => void>} */
const KEYS = {
  j: () => step(1),
  ArrowDown: () => step(1),
  k: () => step(-1),
  ArrowUp: () => step(-1),
  Enter: () => list.current && list.select(list.current),
  g: () => list.toTop(),
  p: togglePause,
  "/": () => byId("search").focus(),
  f: () => byId("filters").togglePopover(),
  "?": showHelp,
  ...Object.fromEntries(VIEWS.map(([view], index) => [String(index + 1), () => setState({ view, row: "" })])),
};

/** Moves the cursor; open details follow it. */
function step(/** @type {number} */ by) {
  const row = list.move(by);
  if (row && isPanelOpen()) showRow(row);
}

function pressed(/** @type {KeyboardEvent} */ event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open], :popover-open")) return;
  if (target.matches("input, select, textarea")) return;
  if (event.key === "Escape") return leaveDetails();
  // The browser's own meaning: Enter presses buttons, arrows scroll the panel.
  const isOwn = event.key === "Enter" ? target.closest("button, a, summary") : event.key.startsWith("Arrow") && target.closest("aside, .connections");
  const act = KEYS[event.key];
  if (!act || isOwn) return;
  event.preventDefault();
  act();
}

/** A click on a value filters; on the export link it sends the token, if there is one. */
function clicked(/** @type {MouseEvent} */ event) {
  const target = /** @type {any} */ (event.target);
  const value = target.closest?.("[data-filter]");
  if (value) {
    const { filter, value: text } = value.dataset;
    const other = { host: "address", address: "host", kinds: "category", category: "kinds" }[/** @type {string} */ (filter)];
    addFilter({ [filter]: text, ...(other && { [other]: "" }) });
  }
  const link = target.closest?.("#export");
  if (link && hasToken()) {
    event.preventDefault();
    save(link).catch((error) => showConnection("refused", messageOf(error)));
  }
}

function start() {
  takeToken();
  readAddress();
  watchTheme();
  startFilters();
  byId("pause").addEventListener("click", togglePause);
  byId("help-button").addEventListener("click", showHelp);
  document.addEventListener("keydown", pressed);
  document.addEventListener("click", clicked);
  addEventListener("popstate", () => {
    readAddress();
    show();
  });
  addEventListener("state", (/** @type {any} */ event) => Object.keys(event.detail).some((key) => key !== "row" && key !== "pause") && show());
  // Browsers allow few connections to a server: pages that are not seen hold none, even in the cache of the back button.
  addEventListener("pagehide", () => feed.disconnect());
  addEventListener("pageshow", (event) => event.persisted && show());
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) feed.disconnect();
    else if (state.view !== "connections") feed.connect();
  });
  addEventListener("close-details", leaveDetails);
  addEventListener("reload", () => feed.restart());
  refresh();
}

start();
