// Which command answers which question: the table of docs/choose.md, which memprof serves.

import { api } from "./api.js";
import { h } from "./dom.js";

/** The rows of a table in Markdown whose second cells are code: `| text | \`code\` |`. @returns {[string, string][]} */
function tableRows(/** @type {string} */ markdown) {
  return [...markdown.matchAll(/^\| (.+) \| `(.+)` \|$/gm)].map(([, text, code]) => [text, code]);
}

/** The table, with the process id in its commands if it is known. */
function table(/** @type {[string, string][]} */ rows, /** @type {number | undefined} */ pid) {
  const command = (/** @type {string} */ text) => h("code", {}, pid ? text.replace("--pid PID", `--pid ${pid}`) : text);
  return h("section", { class: "choices", "aria-label": "Which command?" },
    h("p", {}, command("memprof advise --pid PID"), " looks at a process and says which of these commands fit it. As root:"),
    h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "My process is …"), h("th", { scope: "col" }, "Command"))),
      h("tbody", {}, ...rows.map(([text, code]) => h("tr", {}, h("td", {}, text), h("td", {}, command(code)))))));
}

/** An element that shows the table as soon as it is read. Without it, nothing is shown. */
export function choices() {
  const element = h("div");
  const pid = api.summary().then(({ target }) => (target.pids.length === 1 && target.alive ? target.pid : undefined), () => undefined);
  Promise.all([api.choices(), pid]).then(([text, known]) => element.append(table(tableRows(text), known)), () => {});
  return element;
}
