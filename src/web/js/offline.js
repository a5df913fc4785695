// A report in one HTML file: the replies that the page would request from memprof are in the document, as gzip in
// base64 (src/export/html.rs).

import { matcher } from "./tree/search.js";

/** @typedef {import("./api.js").FunctionRow} FunctionRow */

const data = document.getElementById("saved");

/** Whether the page is such a report. */
export const isSaved = data !== null;

/** The kinds of memory that the report has views of. */
export const savedKinds = (data?.dataset.kinds ?? "").split(" ");

const MISSING = "This report does not contain that view. Save the profile as .memprof.json and open it with `memprof open FILE`.";

/** @type {Promise<Record<string, any>> | null} */
let unpacked = null;

/** The data of the report. @returns {Promise<Record<string, any>>} */
export function contents() {
  unpacked ??= unpack();
  return unpacked;
}

function unpack() {
  const packed = Uint8Array.from(atob(data?.textContent ?? ""), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** The reply to a request for a path below v2/, as memprof would give it. @returns {Promise<any>} */
export async function saved(/** @type {string} */ path, /** @type {Record<string, any>} */ parameters) {
  if (path === "series") return { resolution: 1000, times: [], series: [] };
  if (path === "marks") return { marks: [] };
  const { kind, direction, file } = parameters;
  const keys = /** @type {Record<string, string>} */ ({ functions: `functions ${kind}`, tree: `tree ${kind} ${direction}`, "files/stacks": `files/stacks ${file} ${direction}` });
  const key = Object.hasOwn(keys, path) ? keys[path] : path;
  const replies = await contents();
  if (!Object.hasOwn(replies, key)) throw new Error(MISSING);
  return path === "functions" ? functions(replies[key], parameters) : replies[key];
}

/** A page of functions, searched and sorted as memprof does it. */
function functions(/** @type {any} */ reply, /** @type {Record<string, any>} */ { sort, order, offset, limit, search }) {
  const matches = matcher(search ?? "");
  const rows = /** @type {FunctionRow[]} */ (reply.rows).filter((row) => !matches || (row.function !== null && matches(row.function)) || matches(row.file));
  const name = (/** @type {FunctionRow} */ row) => `${row.function ?? ""} ${row.file}`;
  const by = (/** @type {FunctionRow} */ a, /** @type {FunctionRow} */ b) => (sort === "name" ? (name(a) < name(b) ? -1 : 1) : sort === "total" ? a.total - b.total || a.self - b.self : a.self - b.self || a.total - b.total);
  rows.sort((a, b) => (order === "desc" ? by(b, a) : by(a, b)));
  const matched = rows.reduce((sum, row) => sum + row.self, 0);
  return { ...reply, count: matches ? rows.length : reply.count, matched, offset, rows: rows.slice(offset, offset + limit) };
}
