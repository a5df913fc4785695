// The token that memprof may ask for: from the link that opens the page, or typed in; kept until the tab is closed.

import { fill, h } from "./dom.js";

const KEY = "memprof-token";
const FRAGMENT = "token";

/** Takes the token out of the address, so that it is not in copied links and in the history. */
function take() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const given = parameters.get(FRAGMENT);
  if (given === null) return;
  sessionStorage.setItem(KEY, given);
  parameters.delete(FRAGMENT);
  const rest = String(parameters);
  history.replaceState(null, "", location.pathname + location.search + (rest && `#${rest}`));
}
take();

/** The headers that show the token, if there is one. @returns {Record<string, string>} */
export function credentials() {
  const token = sessionStorage.getItem(KEY);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

/** Whether requests show a token: then what cannot send headers has to be fetched. */
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** Asks for the token in place of the page's contents; the page starts again with it. */
export function askForToken() {
  if (document.getElementById("token")) return;
  const input = h("input", { type: "password", id: "token", name: "token", autocomplete: "current-password", required: true, "aria-describedby": "token-why" });
  const why = hasToken() ? "memprof does not accept this token." : "This memprof answers those who have its token.";
  const form = h("form", {
    class: "notice",
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      location.reload();
    },
  }, h("h2", {}, "Token"), h("p", { id: "token-why" }, `${why} It is in the file that memprof was given with --token-file.`), h("label", { for: "token" }, "Token "), input, " ", h("button", { class: "small" }, "Open"));
  fill(/** @type {HTMLElement} */ (document.getElementById("content")), form);
  input.focus();
}

/** Saves what a link leads to under the link's file name. */
export async function save(/** @type {HTMLAnchorElement} */ link) {
  const reply = await fetch(link.href, { headers: credentials() });
  if (!reply.ok) throw new Error((await reply.text()).trim());
  const url = URL.createObjectURL(await reply.blob());
  h("a", { href: url, download: link.download }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Server-Sent Events as `EventSource` has them, which cannot show a token. */
export class Events extends EventTarget {
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
      events.forEach((event) => this.tell(event));
    }
  }

  /** Dispatches one event: lines of `FIELD: VALUE`. */
  tell(/** @type {string} */ event) {
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
