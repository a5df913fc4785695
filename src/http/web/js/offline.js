// A report in one HTML file: the document contains the API replies that the page requests, as gzip in base64
// (the `html` export).

import { byId } from "./dom.js";
import { compare, directed } from "./sort.js";
import { matcher } from "./tree/search.js";

/** @typedef {import("./api.js").FunctionRow} FunctionRow */

const data = byId("saved");

/** Whether the page is such a report. */
export const isOffline = data !== null;

/** The kinds of memory that the report has views of. */
export const offlineKinds = (data?.dataset.kinds ?? "").split(" ");

const MISSING = "This report does not contain this view. Save the profile as .memprof.json and open it with `memprof open FILE`.";

/** @type {Promise<Record<string, any>> | null} */
let unpacked = null;

/** The data of the report. @returns {Promise<Record<string, any>>} */
export function embeddedData() {
  unpacked ??= unpack();
  return unpacked;
}

function unpack() {
  const packed = Uint8Array.from(atob(data?.textContent ?? ""), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** The reply to a request for a path below v2/, equal to memprof's own. @returns {Promise<any>} */
export async function offlineReply(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters) {
  if (path === "series") return { resolution: 1000, times: [], series: [] };
  if (path === "marks") return { marks: [] };
  const { kind, direction, file } = parameters;
  const keys = /** @type {Record<string, string>} */ ({ functions: `functions ${kind}`, tree: `tree ${kind} ${direction}`, "files/stacks": `files/stacks ${file} ${direction}` });
  const key = Object.hasOwn(keys, path) ? keys[path] : path;
  const replies = await embeddedData();
  if (!Object.hasOwn(replies, key)) throw new Error(MISSING);
  return path === "functions" ? functionsPage(replies[key], parameters) : replies[key];
}

/** A page of functions, searched and sorted by the rules of memprof's API. */
function functionsPage(/** @type {any} */ reply, /** @type {Record<string, any>} */ { sort, order, offset, limit, search }) {
  const matches = matcher(search ?? "");
  const rows = /** @type {FunctionRow[]} */ (reply.rows).filter((row) => !matches || (row.function !== null && matches(row.function)) || matches(row.file));
  const name = (/** @type {FunctionRow} */ row) => `${row.function ?? ""} ${row.file}`;
  const by = (/** @type {FunctionRow} */ a, /** @type {FunctionRow} */ b) => (sort === "name" ? compare(name(a), name(b)) : sort === "total" ? a.total - b.total || a.self - b.self : a.self - b.self || a.total - b.total);
  rows.sort(directed(by, order === "desc"));
  const matched = rows.reduce((sum, row) => sum + row.self, 0);
  return { ...reply, count: matches ? rows.length : reply.count, matched, offset, rows: rows.slice(offset, offset + limit) };
}
