// Names of frames as they are drawn: where the room is short, the parts that distinguish functions least are left out.

/** @typedef {{ name: string, module?: string }} Frame */

/** The name of a frame; with its file where many functions have the same name: `<module> shop.py`. */
export function drawnName(/** @type {Frame} */ { name, module }) {
  return module && /^<[a-z ]+>$/.test(name) ? `${name} ${module}` : name;
}

/** A name of C++ without parameters and template arguments, as `go tool pprof` shows it; other names as they are. */
export function shortName(/** @type {string} */ name) {
  // `<Vec<T> as Trait>::method` and `<module>` begin with what distinguishes them. In `parse.<locals>.<lambda>` and
  // `HashMap.<init>`, a part of the name is in angle brackets.
  if (!/^[\w~].*[(<]/.test(name) || name.includes("operator")) return name;
  let [short, open] = ["", 0];
  for (let at = 0; at < name.length; at++) {
    const letter = name[at];
    if (open === 0 && name.startsWith(ANONYMOUS, at)) {
      short += ANONYMOUS;
      at += ANONYMOUS.length - 1;
    } else if (letter === "<" && open === 0 && !/\w/.test(name[at - 1])) return name;
    else if (letter === "(" || letter === "<") open++;
    else if (letter === ")" || (letter === ">" && name[at - 1] !== "-")) open--;
    else if (open === 0) short += letter;
    if (open < 0) return name;
  }
  // The return type of a template, and qualifiers such as `const`, are separated by spaces.
  const words = short.replaceAll(ANONYMOUS, "\0").trim().replace(/ (const|volatile|&&?|\[clone .*)$/, "").split(" ");
  return open === 0 ? words[words.length - 1].replaceAll("\0", ANONYMOUS) || name : name;
}

const ANONYMOUS = "(anonymous namespace)";
