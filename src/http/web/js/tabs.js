// Scroll buttons at the ends of a row of tabs that is wider than the screen.

import { h } from "./dom.js";

/** Adds the buttons to a row. Each is visible while there are more tabs at its end. */
export function addScrollButtons(/** @type {HTMLElement} */ row) {
  const by = (/** @type {number} */ share) => () => row.scrollBy({ left: share * row.clientWidth, behavior: "auto" });
  const back = h("button", { class: "more-tabs", "aria-label": "Earlier views", onclick: by(-0.7) }, "‹");
  const forward = h("button", { class: "more-tabs", "aria-label": "More views", onclick: by(0.7) }, "›");
  row.before(back);
  row.after(forward);
  const update = () => {
    // Positions are fractions of a pixel.
    back.hidden = row.scrollLeft < 2;
    forward.hidden = row.scrollLeft + row.clientWidth > row.scrollWidth - 2;
  };
  const reveal = () => {
    update();
    const open = row.querySelector("[aria-current]")?.getBoundingClientRect();
    const { left, right } = row.getBoundingClientRect();
    // Only sideways: `scrollIntoView` would also scroll a page whose tabs are above the window.
    if (open && open.left < left) row.scrollLeft -= left - open.left;
    else if (open && open.right > right) row.scrollLeft += open.right - right;
  };
  row.addEventListener("scroll", update);
  new ResizeObserver(reveal).observe(row);
  new MutationObserver(reveal).observe(row, { childList: true });
  reveal();
}
