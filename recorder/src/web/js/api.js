// Client of the recorder's HTTP API. Paths are relative, so that a proxy can serve the page below any path.

import { nodeName } from "./state.js";

/** @typedef {{ id: number, time: string, time_ms: number, connection: string, peer_id: string | null, address: string, initiator: string | null, incoming: boolean, kind: string, category: string, size: number, preview: string | null, hash: string | null, error: string | null }} Message */
/** @typedef {{ local: any, remote: any }} Sides */
/** @typedef {Message & { message: any, message_cut: boolean, plain: string, raw: string, cut: boolean }} MessageDetails */
/** @typedef {{ id: number, time: string, time_ms: number, level: string, section: string, message: string }} Log */
/** @typedef {{ id: string, address: string, initiator: string | null, peer_id: string | null, versions: Sides, metadata: Sides, acks: Sides, last: string, ended: string | null, end: string, state: string, reason: string | null, bytes: { sent: number, received: number, lost: number, gaps: number }, chunks: { sent: number, received: number }, ignored: string | null, remarks: { time: string, text: string }[] }} Connection */
/** @typedef {{ bytes: number, gaps: number, connections: number, unrecorded: number, undecryptable: number, partly_decrypted: number }} Losses */
/** @typedef {{ name: string, p2p_port: number, peer_id: string | null, messages: number, connections: number, logs: number, peers: number, losses: Losses, first_time: string | null, identity: string }} Node */

/** Timeout of a request, in ms. */
const TIMEOUT_MS = 30_000;
const TOKEN = "tezos-recorder-token";

/** A failed request: its status (0: no reply) and the reason. */
export class ApiError extends Error {
  constructor(/** @type {number} */ status, /** @type {string} */ text) {
    super(text);
    this.status = status;
  }
}

/** Moves a token out of the address, so that copied links and the history do not contain it. */
export function takeToken() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const token = parameters.get("token");
  if (token === null) return;
  setToken(token);
  parameters.delete("token");
  history.replaceState(null, "", `#${parameters}`);
}

/** Keeps a token until the tab is closed. */
export const setToken = (/** @type {string} */ token) => sessionStorage.setItem(TOKEN, token.trim());
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** @returns {Record<string, string>} */
function credentials() {
  const token = sessionStorage.getItem(TOKEN);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

/** The URL of a path with the parameters that are not empty. */
export function urlOf(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters) {
  const set = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `v4/${path}${set.length ? `?${new URLSearchParams(set)}` : ""}`;
}

async function request(/** @type {string} */ url, /** @type {RequestInit} */ options = {}) {
  let reply;
  try {
    reply = await fetch(url, { ...options, headers: { ...credentials(), ...options.headers } });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "The recorder does not answer.");
  }
  if (!reply.ok) throw new ApiError(reply.status, (await reply.text()).trim().slice(0, 1000) || `status ${reply.status}`);
  return reply;
}

/** The JSON of a reply. */
export async function get(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters = {}) {
  const reply = await request(urlOf(path, parameters), { signal: AbortSignal.timeout(TIMEOUT_MS) }).catch((error) => {
    throw error instanceof ApiError ? error : new ApiError(0, `The recorder did not answer within ${TIMEOUT_MS / 1000} s.`);
  });
  return reply.json();
}

/** A message with its content and bytes. @returns {Promise<MessageDetails>} */
export const message = (/** @type {string} */ id) => get(`messages/${id}`, { node: nodeName() });

/** A connection. @returns {Promise<Connection>} */
export const connection = (/** @type {string} */ id) => get(`connections/${id}`, { node: nodeName() });

/** Downloads a link's target with the token, which a link cannot send. */
export async function save(/** @type {HTMLAnchorElement} */ link) {
  const reply = await request(link.href);
  const url = URL.createObjectURL(await reply.blob());
  const copy = document.createElement("a");
  Object.assign(copy, { href: url, download: link.download });
  copy.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/**
 * Reads Server-Sent Events until the recorder ends them, as it does after some minutes. Throws if they cannot be read. `EventSource` cannot send a token, nor say the status of a refusal.
 * @param {string} url
 * @param {string} last id of the last event that was received before; empty for new ones only
 * @param {AbortSignal} signal
 * @param {() => void} opened
 * @param {(name: string, data: any, id: string) => void} receive
 */
export async function readEvents(url, last, signal, opened, receive) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  const reply = await request(url, { headers, signal });
  if (!reply.body) throw new ApiError(0, "The reply has no body.");
  opened();
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) parseEvent(event, receive);
  }
}

/** Parses one event: lines of `FIELD: VALUE`. */
function parseEvent(/** @type {string} */ event, /** @type {(name: string, data: any, id: string) => void} */ receive) {
  let [name, id, data] = ["message", "", ""];
  for (const line of event.split("\n")) {
    const colon = line.indexOf(":");
    const value = line.slice(colon + 1).trimStart();
    const field = line.slice(0, colon);
    if (field === "event") name = value;
    else if (field === "id") id = value;
    else if (field === "data") data += data ? `\n${value}` : value;
  }
  if (data || id) receive(name, data ? JSON.parse(data) : null, id);
}
