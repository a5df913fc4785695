// The page's state. It stands in the address, so that a link restores it.

/** Keys of the state with their defaults. Filters are those of the API, but for `category`. */
const DEFAULTS = {
  node: "",
  view: "all",
  category: "",
  kinds: "",
  incoming: "",
  initiator: "",
  address: "",
  host: "",
  peer: "",
  connection: "",
  hash: "",
  error: "",
  levels: "",
  query: "",
  from: "",
  to: "",
  row: "",
  pause: "",
};

/** @typedef {keyof typeof DEFAULTS} Key */

/** @type {Record<Key, string>} */
export const state = { ...DEFAULTS };

/** The node that is meant if the address names none: the first one, once the nodes are known. */
let usualNode = "";
export const setUsualNode = (/** @type {string} */ name) => (usualNode = name);
export const nodeName = () => state.node || usualNode;

/** The views, in the order of their tabs. @type {[string, string][]} */
export const VIEWS = [
  ["all", "Messages and logs"],
  ["messages", "Messages"],
  ["logs", "Logs"],
  ["connections", "Connections"],
];

/** The categories of kinds. */
export const CATEGORIES = ["connection", "meta", "ack", "p2p"];

/** Kinds of messages, as the API names them. */
export const KINDS = [
  "connection_message", "metadata", "ack_message", "disconnect", "bootstrap", "advertise", "swap_request", "swap_ack",
  "get_current_branch", "current_branch", "deactivate", "get_current_head", "current_head", "get_block_headers", "block_header",
  "get_operations", "operation", "get_protocols", "protocol", "get_operation_hashes_for_blocks", "operation_hashes_for_blocks",
  "get_operations_for_blocks", "operations_for_blocks", "get_checkpoint", "checkpoint", "get_protocol_branch", "protocol_branch",
  "get_predecessor_header", "predecessor_header", "dal_graft", "dal_prune", "dal_ihave", "dal_iwant", "dal_subscribe",
  "dal_unsubscribe", "dal_message_with_header", "unknown",
];

/** The category of a kind. */
export const categoryOf = (/** @type {string} */ kind) => ({ connection_message: "connection", metadata: "meta", ack_message: "ack" })[kind] ?? "p2p";

/** Levels of logs, from the most severe. */
export const LEVELS = ["Fatal", "Error", "Warning", "Notice", "Info", "Debug", "Trace"];

/** @type {Key[]} */
const MESSAGE_FILTERS = ["kinds", "incoming", "initiator", "address", "host", "peer", "connection", "hash", "error"];
/** @type {Key[]} */
const LOG_FILTERS = ["levels", "query"];
/** @type {Key[]} */
const TIMES = ["from", "to"];
/** @type {Key[]} */
export const FILTERS = ["category", ...MESSAGE_FILTERS, ...LOG_FILTERS, ...TIMES];

/** Reads the state from the address. */
export function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  for (const key of /** @type {Key[]} */ (Object.keys(DEFAULTS))) state[key] = parameters.get(key) ?? DEFAULTS[key];
  if (!VIEWS.some(([view]) => view === state.view)) state.view = DEFAULTS.view;
}

/** The address of a state: the current one with changes. */
export function linkTo(/** @type {Partial<Record<Key, string>>} */ changes) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...state, ...changes })) {
    if (value !== DEFAULTS[/** @type {Key} */ (key)]) parameters.set(key, value);
  }
  return `#${parameters}`;
}

/** Changes the state and the address. A changed row replaces the entry of the history; other changes add one. */
export function setState(/** @type {Partial<Record<Key, string>>} */ changes) {
  const link = linkTo(changes);
  if (link === linkTo({})) return;
  const isSmall = Object.keys(changes).every((key) => key === "row" || key === "pause");
  Object.assign(state, changes);
  if (isSmall) history.replaceState(null, "", link);
  else history.pushState(null, "", link);
  dispatchEvent(new CustomEvent("state", { detail: changes }));
}

const noFilters = () => Object.fromEntries(FILTERS.map((key) => [key, ""]));
export const clearFilters = () => setState(noFilters());
export const isFiltered = () => FILTERS.some((key) => state[key]);

/** @param {Key[]} keys */
const parameters = (keys) => ({ node: nodeName(), ...Object.fromEntries(keys.map((key) => [key, state[key]])) });

/** The parameters of a request for messages. */
export function messageParameters() {
  const chosen = parameters([...MESSAGE_FILTERS, ...TIMES]);
  if (state.category) {
    const kinds = chosen.kinds ? chosen.kinds.split(",") : KINDS;
    // If nothing is in both, the category wins, so that the list is not unfiltered.
    const both = kinds.filter((kind) => categoryOf(kind) === state.category);
    chosen.kinds = (both.length ? both : KINDS.filter((kind) => categoryOf(kind) === state.category)).join(",");
  }
  return chosen;
}

/** The parameters of a request for lines of the log. */
export const logParameters = () => parameters([...LOG_FILTERS, ...TIMES]);

/** The parameters of a request for connections. */
export const connectionParameters = () => parameters(["host", "peer"]);

export const showsMessages = () => state.view === "all" || state.view === "messages";
export const showsLogs = () => state.view === "all" || state.view === "logs";
