// A small time line beside a row.

/** Size of a small time line in pixels. */
const [WIDTH, HEIGHT] = [110, 18];
const SVG = "http://www.w3.org/2000/svg";

/** Draws values at equal intervals. */
export function smallLine(/** @type {number[]} */ values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (/** @type {number} */ i) => (i / Math.max(1, values.length - 1)) * WIDTH;
  const y = (/** @type {number} */ value) => HEIGHT - 2 - ((value - low) / Math.max(1, high - low)) * (HEIGHT - 4);
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  line.setAttribute("class", "small-line");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("width", String(WIDTH));
  svg.setAttribute("height", String(HEIGHT));
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}
