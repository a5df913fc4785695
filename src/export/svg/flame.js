// Zoom and search. Every frame has its place and size in bytes; pixels follow from what is in view.
"use strict";
(function () {
  const WIDTH = document.documentElement.viewBox.baseVal.width, CHAR = 7;
  const find = (id) => document.getElementById(id);
  let frames;

  function load() {
    frames = Array.from(document.querySelectorAll("#frames > g"), (g) => {
      const title = g.querySelector("title").textContent;
      return {
        g, title,
        name: title.slice(0, title.lastIndexOf(": ")),
        rect: g.querySelector("rect"), text: g.querySelector("text"),
        start: Number(g.dataset.s), bytes: Number(g.dataset.b),
        y: Number(g.querySelector("rect").getAttribute("y")),
      };
    });
    const root = frames[0];
    for (const f of frames) {
      f.g.setAttribute("tabindex", "0");
      f.g.addEventListener("mouseover", () => { find("details").textContent = f.title; });
      f.g.addEventListener("focus", () => { find("details").textContent = f.title; });
      press(f.g, () => zoom(f));
    }
    press(find("reset"), () => zoom(root));
    press(find("search"), ask);
    window.addEventListener("keydown", (e) => {
      if ((e.ctrlKey || e.metaKey) && e.key === "f") { e.preventDefault(); ask(); }
      if (e.key === "Escape") { zoom(root); search(""); }
    });
  }

  function press(node, action) {
    node.addEventListener("click", action);
    node.addEventListener("keydown", (e) => {
      if (e.key === "Enter" || e.key === " ") { e.preventDefault(); action(); }
    });
  }

  function zoom(to) {
    // The root is on top or at the bottom; nearer to it are the frames that the view stands on.
    const rootY = frames[0].y;
    const scale = WIDTH / Math.max(1, to.bytes);
    for (const f of frames) {
      const base = Math.abs(f.y - rootY) < Math.abs(to.y - rootY)
        && f.start <= to.start && f.start + f.bytes >= to.start + to.bytes;
      const inside = f.start >= to.start && f.start + f.bytes <= to.start + to.bytes
        && Math.abs(f.y - rootY) >= Math.abs(to.y - rootY);
      f.g.classList.toggle("above", base);
      f.g.style.display = base || inside ? "" : "none";
      if (base) place(f, 0, WIDTH);
      else if (inside) place(f, (f.start - to.start) * scale, f.bytes * scale);
    }
    find("reset").setAttribute("visibility", to === frames[0] ? "hidden" : "visible");
  }

  function place(f, x, width) {
    f.rect.setAttribute("x", x);
    f.rect.setAttribute("width", width);
    f.text.setAttribute("x", x + 3);
    const letters = Array.from(f.name), room = Math.floor(Math.max(0, width - 6) / CHAR);
    f.text.textContent = letters.length <= room ? f.name
      : room < 3 ? "" : letters.slice(0, room - 2).join("") + "..";
  }

  function size(bytes) {
    if (find("frames").dataset.unit === "objects") return bytes + " objects";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
    return bytes.toFixed(Number.isInteger(bytes) || bytes >= 1000 ? 0 : bytes < 10 ? 2 : 1) + " " + units[unit];
  }

  function ask() {
    const what = window.prompt("Search in names (a part of the name; empty to end)", "");
    if (what !== null) search(what);
  }

  function search(what) {
    const part = what.toLowerCase();
    const hits = [];
    for (const f of frames.slice(1)) {
      const hit = part !== "" && f.name.toLowerCase().includes(part);
      f.g.classList.toggle("hit", hit);
      if (hit) hits.push(f);
    }
    // A frame above another hit counts once.
    hits.sort((a, b) => a.start - b.start || b.bytes - a.bytes);
    let sum = 0, end = 0;
    for (const f of hits) {
      if (f.start >= end) { sum += f.bytes; end = f.start + f.bytes; }
    }
    const percent = (100 * sum / Math.max(1, frames[0].bytes)).toFixed(2);
    find("found").textContent = part === "" ? " " : "Found: " + size(sum) + ", " + percent + " %";
  }

  // The script stands before the frames.
  window.addEventListener("DOMContentLoaded", load);
})();
