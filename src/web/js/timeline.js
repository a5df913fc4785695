// The timeline: memory by kind, stacked, or the chosen kind of the heap; with marks. Drag to select a range, double-click to select all.

import { api } from "./api.js";
import { ticksTo } from "./axis.js";
import { fill, h, later, notice, select, set } from "./dom.js";
import { amount, clock } from "./format.js";
import { asCounted, isOfHeap, KINDS, unitOf } from "./kinds.js";
import { MarkNames } from "./mark_labels.js";
import { change, state } from "./state.js";
import { colour, isDark } from "./theme.js";
import { label } from "./glossary.js";

/** @typedef {import("./api.js").Mark} Mark */

/** The stacked series, from the bottom up. */
const STACKED = /** @type {[string, string][]} */ ([["anon", "rss_anon"], ["shmem", "rss_shmem"], ["cache", "cache"]]);
/** The kinds of the heap, each drawn alone. */
const ALONE = /** @type {[string, string][]} */ (KINDS.filter(({ name }) => isOfHeap(name)).map(({ name }) => [name, name]));
/** Maximum number of samples drawn. */
const MOST = 4000;
/** Heights of the plot in pixels: on wide and on narrow screens. */
const [HEIGHT, LOW] = [110, 88];
/** A drag of at least this many pixels selects a range. */
const DRAG = 4;

/** Steps between ticks, in seconds: within a second, the texts of ticks would be the same. */
const SECONDS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 2592000];

/** Where a mark is: when its profile was taken or, of a process that was killed, when that was. */
const moment = (/** @type {Mark} */ mark) => mark.oom_kill?.killed ?? mark.taken;

export class Timeline {
  /** @param {(marks: Mark[]) => void} known is told which marks there are */
  constructor(/** @type {HTMLElement} */ element, /** @type {(mark: Mark) => void} */ open, known) {
    this.element = element;
    this.open = open;
    this.known = known;
    /** @type {Mark[]} */
    this.marks = [];
    /** @type {any} */
    this.plot = null;
    /** @type {number[]} */
    this.time = [];
    /** @type {Map<string, (number | null)[]>} */
    this.values = new Map();
    this.step = 1000;
    this.signature = "";
    this.height = matchMedia("(max-width: 700px)").matches ? LOW : HEIGHT;
    this.names = new MarkNames();
    this.figures = h("div", { class: "legend" });
    this.reset = h("button", { class: "small", hidden: true, onclick: () => change({ t0: "", t1: "" }) }, "show all time");
    this.resolution = select("Range of the timeline", [["1s", "last hour"], ["1m", "last day"]], state.res, (res) => change({ res, t0: "", t1: "" }), "The last hour by second, or the last day by minute");
    this.legend = h("div", { class: "timeline-foot" }, this.figures, this.reset, this.resolution);
    this.box = h("div", { class: "plot" });
    fill(element, this.box, this.legend);
    new ResizeObserver(later(() => this.fit(), 50)).observe(this.box);
  }

  /** Fetches and draws the series. If the request fails, only live samples are drawn. */
  async refresh() {
    try {
      await this.fetch();
    } catch (error) {
      if (!this.plot) this.empty(error instanceof Error ? error.message : "");
    }
  }

  async fetch() {
    const resolution = state.res;
    const [series, marks] = await Promise.all([api.series(resolution), api.marks()]);
    if (resolution !== state.res) return;
    this.marks = marks;
    this.known(marks);
    this.step = series.resolution;
    this.time = series.times;
    const named = (/** @type {string} */ name) => series.series.find((one) => one.name === name)?.values ?? this.time.map(() => null);
    this.values = new Map([...STACKED, ...ALONE].map(([, name]) => [name, named(name)]));
    this.draw();
  }

  /** Adds a live sample. They arrive once a second, so only the finer resolution uses them. */
  add(/** @type {Record<string, number | null>} */ sample) {
    const time = Number(sample.time);
    const last = this.time[this.time.length - 1] ?? 0;
    // The clock was set back: the times of all earlier samples were corrected.
    if (this.step <= 1000 && time < last - 1500) void this.refresh();
    if (this.step > 1000 || time <= last) return;
    this.time.push(time);
    for (const [name, values] of this.values) values.push(sample[name] ?? null);
    if (this.time.length > MOST) {
      this.time.shift();
      for (const values of this.values.values()) values.shift();
    }
    if (!document.hidden) this.draw();
  }

  empty(why = "Memory over time will appear here within seconds.") {
    this.destroy();
    fill(this.box, notice("No timeline yet", why));
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
  }

  /** The series that belong to the chosen kind: a kind of the heap, if there is a figure of it, or those of resident memory. */
  get series() {
    const alone = ALONE.filter(([kind]) => kind === state.kind && this.values.get(kind)?.some((value) => value !== null));
    return alone.length ? alone : STACKED;
  }

  /** The stacked points of all kinds; a missing sample is a gap. */
  data() {
    const { series } = this;
    const shown = series === STACKED ? STACKED.filter(([, name]) => this.values.get(name)?.some((value) => value)) : series;
    /** @type {number[]} */
    const times = [];
    const lines = /** @type {(number | null)[][]} */ (shown.map(() => []));
    this.time.forEach((time, i) => {
      if (i && time - this.time[i - 1] > 3.5 * this.step) {
        times.push((this.time[i - 1] + this.step) / 1000);
        for (const line of lines) line.push(null);
      }
      times.push(time / 1000);
      let sum = 0;
      shown.forEach(([, name], n) => {
        const value = this.at(name, i)[0];
        lines[n].push(value === null ? null : (sum += value));
      });
    });
    // The largest sum is drawn first, the others on top of it.
    return { data: [times, ...lines.reverse()], lines: shown.map(([kind]) => kind).reverse() };
  }

  /**
   * A figure at a sample, and whether it is carried over from an earlier one: page cache and the heap are read only with
   * reports, and its last value is drawn until the next one.
   * @returns {[number | null, boolean]}
   */
  at(/** @type {string} */ name, /** @type {number} */ index) {
    const values = this.values.get(name) ?? [];
    let known = index;
    while ((name === "cache" || isOfHeap(name)) && known > 0 && values[known] === null) known--;
    return [values[known] ?? null, known < index];
  }

  draw() {
    if (this.time.length < 2) return this.empty();
    const { data, lines } = this.data();
    const signature = `${lines.join()} ${isDark()}`;
    if (this.plot && this.signature === signature) {
      // (`redraw` would queue the old range again.)
      this.plot.setData(data, false);
      this.range();
    } else {
      this.destroy();
      this.signature = signature;
      fill(this.box);
      // @ts-ignore: uPlot is a global from a separate script
      this.plot = new uPlot(this.options(lines), data, this.box);
      this.over();
      this.range();
    }
    this.key(lines);
  }

  options(/** @type {string[]} */ lines) {
    const text = colour("text");
    const unit = unitOf(lines[0]);
    const most = (/** @type {any} */ plot) => plot.data.slice(1).flat().reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b ?? 0), 0);
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui" };
    const times = (/** @type {any} */ _, /** @type {number[]} */ ticks) => {
      const short = ticks.length < 2 || ticks[1] - ticks[0] >= 60;
      return ticks.map((s) => clock(s * 1000).slice(0, short ? 5 : 8));
    };
    return {
      width: Math.max(200, this.box.clientWidth),
      height: this.height,
      padding: [8, null, null, null],
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false, click: () => {} }, y: false, points: { show: false } },
      scales: { x: { time: true }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, ticksTo(most, unit).end] } },
      series: [{}, ...lines.map((kind) => ({ label: label(kind), stroke: colour(kind), fill: colour(kind), width: 1, points: { show: false } }))],
      axes: [{ ...axis, values: times, incrs: SECONDS, space: 90, size: 26 }, { ...axis, size: 74, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((v) => amount(v, unit)), splits: (/** @type {any} */ plot) => ticksTo(most(plot), unit).ticks }],
      hooks: {
        setSelect: [(/** @type {any} */ plot) => this.chosen(plot)],
        setCursor: [(/** @type {any} */ plot) => this.key(lines, plot.cursor.idx)],
        draw: [(/** @type {any} */ plot) => this.drawMarks(plot)],
      },
    };
  }

  /**
   * Clicks: on a mark, shows its diff to now; a double click anywhere selects all of the time. uPlot's own rule,
   * which ignores a click after the smallest move, is off: users move a little when they point at a line.
   */
  over() {
    const over = this.plot.over;
    let pressed = 0;
    over.addEventListener("dblclick", () => change({ t0: "", t1: "" }));
    over.addEventListener("mousedown", (/** @type {MouseEvent} */ event) => (pressed = event.offsetX));
    over.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      if (Math.abs(event.offsetX - pressed) >= DRAG) return;
      const mark = this.marks.find((m) => Math.abs(this.plot.valToPos(moment(m) / 1000, "x") - event.offsetX) < 6);
      if (mark) this.open(mark);
    });
  }

  chosen(/** @type {any} */ plot) {
    if (plot.select.width < DRAG) return;
    const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((x) => plot.posToVal(x, "x"));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    change({ t0: String(Math.floor(from)), t1: String(Math.ceil(to)) });
  }

  /** Shows the selected range, or everything up to the newest sample or mark. */
  range() {
    if (!this.plot) return;
    const { time } = this;
    const newest = Math.max(time[time.length - 1], ...this.marks.map(moment));
    const [from, to] = [Number(state.t0) || time[0] / 1000, Number(state.t1) || newest / 1000];
    this.plot.setScale("x", { min: from, max: Math.max(to, from + 1) });
  }

  drawMarks(/** @type {any} */ plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = 1;
    ctx.setLineDash([4, 3]);
    const shown = [];
    for (const mark of this.marks) {
      // In the middle of a pixel, so that the line is sharp.
      const x = Math.floor(plot.valToPos(moment(mark) / 1000, "x", true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour(mark.oom_kill ? "bad" : "text");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      shown.push({ mark, x: plot.valToPos(moment(mark) / 1000, "x") });
    }
    ctx.restore();
    plot.over.append(this.names.element);
    this.names.show(shown, plot.over.clientWidth, plot.over.clientHeight);
  }

  /** Shows the kinds with their bytes, now or at the cursor. */
  key(/** @type {string[]} */ lines, /** @type {number | null} */ index = null) {
    const when = index === null ? null : this.plot?.data[0][index];
    const i = when ? this.time.indexOf(Math.round(when * 1000)) : this.time.length - 1;
    if (i < 0) return;
    const texts = lines.slice().reverse().map((kind) => {
      const name = this.series.find(([one]) => one === kind)?.[1] ?? "";
      const [value, old] = this.at(name, i);
      return [kind, `${label(kind)} ${amount(value ?? NaN, unitOf(kind))}${isOfHeap(kind) ? asCounted(" (estimated)") : ""}${old ? " (last known)" : ""}`];
    });
    const at = when ? `at ${clock(this.time[i])}` : "now";
    fill(this.figures, h("span", { class: "faint" }, at), ...texts.map(([kind, text]) => h("span", {}, h("i", { class: `swatch ${kind}` }), text)));
    this.reset.hidden = !state.t0;
    set(this.box, { role: "img", "aria-label": `Memory over time, ${at}: ${texts.map(([, text]) => text).join(", ")}` });
  }

  fit() {
    if (this.plot && this.box.clientWidth > 100) this.plot.setSize({ width: this.box.clientWidth, height: this.height });
  }
}
