// The API token that memprof may require: read from the link that opens the page, or entered by the user. It is stored
// until the tab is closed.

import { byId, h, replace } from "./dom.js";

const KEY = "memprof-token";
const FRAGMENT = "token";

/** Moves the token out of the address, so that copied links and the history do not contain it. */
function takeFromAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const token = parameters.get(FRAGMENT);
  if (token === null) return;
  sessionStorage.setItem(KEY, token);
  parameters.delete(FRAGMENT);
  const rest = String(parameters);
  history.replaceState(null, "", location.pathname + location.search + (rest && `#${rest}`));
}
takeFromAddress();

/** The headers with the token, if there is one. @returns {Record<string, string>} */
export function credentials() {
  const token = sessionStorage.getItem(KEY);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

/** Whether requests need the token's header. Links and `EventSource` cannot send it: use `fetch` instead. */
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** Replaces the page's content with a form for the token; submitting it reloads the page. */
export function askForToken() {
  if (byId("token")) return;
  const input = h("input", { type: "password", id: "token", name: "token", autocomplete: "current-password", required: true, "aria-describedby": "token-why" });
  const why = hasToken() ? "memprof does not accept this token." : "This memprof requires a token.";
  const form = h("form", {
    class: "notice",
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      location.reload();
    },
  }, h("h2", {}, "Token"), h("p", { id: "token-why" }, `${why} The file given with --token-file contains it.`), h("label", { for: "token" }, "Token "), input, " ", h("button", { class: "small" }, "Open"));
  replace(byId("content"), form);
  input.focus();
}

/** Downloads the target of a link to a file with the link's name. */
export async function save(/** @type {HTMLAnchorElement} */ link) {
  const reply = await fetch(link.href, { headers: credentials() });
  if (!reply.ok) throw new Error((await reply.text()).trim());
  const url = URL.createObjectURL(await reply.blob());
  h("a", { href: url, download: link.download }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Server-Sent Events with the interface of `EventSource`, which cannot send a token. */
export class TokenEventSource extends EventTarget {
  constructor(/** @type {string} */ url) {
    super();
    this.ended = new AbortController();
    this.read(url).catch(() => this.ended.signal.aborted || this.dispatchEvent(new Event("error")));
  }

  close() {
    this.ended.abort();
  }

  async read(/** @type {string} */ url) {
    const reply = await fetch(url, { headers: { ...credentials(), Accept: "text/event-stream" }, signal: this.ended.signal });
    if (!reply.ok || !reply.body) throw new Error(`status ${reply.status}`);
    this.dispatchEvent(new Event("open"));
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("ended");
      const events = (rest + value).split("\n\n");
      rest = events.pop() ?? "";
      events.forEach((event) => this.dispatch(event));
    }
  }

  /** Dispatches one event: lines of `FIELD: VALUE`. */
  dispatch(/** @type {string} */ event) {
    let name = "message";
    const data = [];
    for (const line of event.split("\n")) {
      const [, field, value] = /^([^:]*): ?(.*)$/.exec(line) ?? [];
      if (field === "event") name = value;
      if (field === "data") data.push(value);
    }
    if (data.length) this.dispatchEvent(new MessageEvent(name, { data: data.join("\n") }));
  }
}
