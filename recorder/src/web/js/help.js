// The keys and the terms.

import { button, byId, h, replace } from "./dom.js";

/** @type {[string, string][]} */
const KEYS = [
  ["j k ↓ ↑", "next and previous row"],
  ["Enter", "details of the row"],
  ["Esc", "close the details"],
  ["g", "show the newest rows"],
  ["p", "stop or resume new rows"],
  ["/", "add a filter"],
  ["f", "all filters"],
  ["1 2 3 4", "messages and logs, messages, logs, connections"],
  ["?", "this help"],
];

/** @type {[string, string][]} */
const TERMS = [
  ["← received, → sent", "as seen by the node that is recorded."],
  ["opened by", "the side that opened the TCP connection: the node or the peer."],
  ["category", "connection, meta and ack are the three messages of the handshake; p2p are all others."],
  ["not recorded", "the recorder sees the connection and knows why it cannot read it. The most frequent reason: it was opened before the recorder started, so that its nonces are not known. It is read after its next handshake."],
  ["lost", "bytes that were not captured. Their number is exact, because it comes from TCP's sequence numbers. Decryption resumes behind them."],
  ["hash", "of the block or the operation in a message; the beginning is enough to filter."],
  ["log text", "words: one of them must be there; +word must be there, -word must not, \"a phrase\" must be there as it is."],
  ["pcapng", "a file for Wireshark or tcpdump: TCP packets rebuilt from captured bytes, and plain messages beside them."],
];

const list = (/** @type {[string, string][]} */ pairs, /** @type {(text: string) => any} */ term) => h("dl", {}, ...pairs.map(([name, text]) => h("div", {}, h("dt", {}, term(name)), h("dd", {}, text))));

/** Shows the help. */
export function showHelp() {
  const dialog = byId("help");
  const keys = (/** @type {string} */ text) => h("span", {}, ...text.split(" ").map((key) => h("kbd", {}, key)));
  replace(dialog, h("header", {}, h("h2", {}, "Help"), button("Close", () => dialog.close())), h("h3", {}, "Keys"), list(KEYS, keys), h("h3", {}, "Terms"), list(TERMS, (text) => text));
  dialog.showModal();
}
