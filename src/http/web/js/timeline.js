// The timeline: memory by kind, stacked, or the selected kind of the heap; with marks. A drag selects a range, a double click
// selects all. Where moments are recorded, a click selects one, which every view shows, and a drag the span whose difference is
// shown; the wheel zooms. Where the cursor rests, the functions are named that changed most. Lost events are marked at the bottom.

import { api } from "./api.js";
import { ticksTo } from "./axis.js";
import { debounce, h, isNarrow, messageOf, notice, replace, select, setProperties } from "./dom.js";
import { amount, clock, number, signed } from "./format.js";
import { functionName, label } from "./glossary.js";
import { asCounted, isHeapKind, KINDS, unitOf } from "./kinds.js";
import { MarkLabels } from "./mark_labels.js";
import { change, state } from "./state.js";
import { colour, isDark } from "./theme.js";

/** @typedef {import("./api.js").Mark} Mark */

/** The stacked series, from the bottom up: [kind, name in the API]. */
const STACKED = /** @type {[string, string][]} */ ([["anon", "rss_anon"], ["shmem", "rss_shmem"], ["cache", "cache"]]);
/** The series of the heap, each drawn without others: [kind, name in the API]. */
const HEAP = /** @type {[string, string][]} */ (KINDS.filter(({ name }) => isHeapKind(name)).map(({ name }) => [name, name]));
/** How many events were lost so far, if any. */
const LOST = "lost";
/** Maximum number of samples. */
const MAX_SAMPLES = 4000;
/** Heights of the plot in pixels: on wide and on narrow screens. */
const [HEIGHT, NARROW_HEIGHT] = [96, 88];
/** Height of the line of names above the plot, in pixels. */
const NAMES = 17;
/** How long the cursor rests before the changes at it are fetched, in ms. */
const HOVER_MS = 150;
/** Minimum width of a drag that selects a range, in pixels. */
const MIN_DRAG = 4;

/** Steps between ticks, in seconds. Ticks within a second would have equal labels. */
const TICK_SECONDS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 2592000];

/** The time of a mark: of its profile or, for a killed process, of the kill. */
const timeOf = (/** @type {Mark} */ mark) => mark.oom_kill?.killed ?? mark.taken;

/** The moment of the id of a mark, in ms since 1970; null if it is none. */
const momentOf = (/** @type {string} */ id) => (/^@\d+$/.test(id) ? Number(id.slice(1)) : null);

/** Marks at the OOM kills of a recording, which has no profiles of them. @returns {Promise<Mark[]>} */
async function killMarks() {
  const { rows } = (await api.summary()).oom_kills;
  return rows.map((kill) => /** @type {Mark} */ ({ id: "", name: `${kill.comm} killed`, taken: kill.killed, oom_kill: kill }));
}

/** The range of the timeline and as much on both sides of it, in ms. */
function rangeIn(/** @type {string} */ from, /** @type {string} */ to) {
  const [start, end] = [Number(from) * 1000, Number(to) * 1000];
  return start && end ? { since: Math.max(0, Math.floor(2 * start - end)), until: Math.ceil(2 * end - start) } : {};
}

export class Timeline {
  /** @param {(marks: Mark[]) => void} onMarks receives the marks after each refresh */
  constructor(/** @type {HTMLElement} */ element, /** @type {(mark: Mark) => void} */ open, onMarks) {
    this.element = element;
    this.open = open;
    this.onMarks = onMarks;
    /** @type {Mark[]} */
    this.marks = [];
    /** @type {any} */
    this.plot = null;
    /** @type {number[]} */
    this.time = [];
    /** @type {Map<string, (number | null)[]>} */
    this.values = new Map();
    this.step = 1000;
    /** Whether moments are recorded. */
    this.recorded = false;
    /** Whether the samples are the moments of an opened recording. */
    this.isOpened = false;
    this.signature = "";
    this.height = isNarrow() ? NARROW_HEIGHT : HEIGHT;
    this.markLabels = new MarkLabels();
    this.figures = h("div", { class: "legend" });
    /** What changed most at the cursor. */
    this.changes = h("div", { class: "legend changes", "aria-live": "off" });
    /** The sample at the cursor. @type {number | null} */
    this.hovered = null;
    this.reset = h("button", { class: "small", hidden: true, onclick: () => this.showAll() }, "show all time");
    this.resolution = select("Range of the timeline", [["1s", "last hour"], ["1m", "last day"]], state.res, (res) => change({ res, t0: "", t1: "" }), "The last hour by second, or the last day by minute");
    this.legend = h("div", { class: "timeline-foot" }, this.figures, this.changes, this.reset, this.resolution);
    this.box = h("div", { class: "plot" });
    this.refreshSoon = debounce(() => this.refresh(), 200);
    this.showChangesSoon = debounce(() => this.showChanges(), HOVER_MS);
    replace(element, this.box, this.legend);
    new ResizeObserver(debounce(() => this.fit(), 50)).observe(this.box);
  }

  /** Fetches and draws the series. If the request fails, only live samples are drawn. */
  async refresh() {
    try {
      await this.fetch();
    } catch (error) {
      if (!this.plot) this.showEmpty(messageOf(error));
    }
  }

  async fetch() {
    const [resolution, from, to] = [state.res, state.t0, state.t1];
    const [series, { marks, peak }] = await Promise.all([api.series(resolution, this.isOpened ? rangeIn(from, to) : {}), api.marksAndPeak()]);
    if (resolution !== state.res || from !== state.t0 || to !== state.t1) return;
    const isFirst = series.resolution === 0 && !this.isOpened;
    this.recorded = series.recorded;
    this.isOpened = series.resolution === 0;
    this.resolution.hidden = this.isOpened;
    document.body.classList.toggle("recorded", this.isOpened);
    // The first series is of all time.
    if (isFirst && from) return this.fetch();
    this.marks = [...(peak ? [peak] : []), ...marks, ...(this.isOpened ? await killMarks() : [])];
    // The filters of allocations know moments since marks.
    this.onMarks(marks);
    this.step = series.resolution;
    this.time = series.times;
    const named = (/** @type {string} */ name) => series.series.find((one) => one.name === name)?.values ?? this.time.map(() => null);
    this.values = new Map([...STACKED, ...HEAP, ["", LOST]].map(([, name]) => [name, named(name)]));
    this.draw();
  }

  /** Adds a live sample. Samples arrive once a second, so only the finer resolution uses them. */
  add(/** @type {Record<string, number | null>} */ sample) {
    const time = Number(sample.time);
    const last = this.time[this.time.length - 1] ?? 0;
    // The clock was set back, and memprof corrected the times of all earlier samples.
    if (this.isOpened) return;
    if (this.step <= 1000 && time < last - 1500) void this.refresh();
    if (this.step > 1000 || time <= last) return;
    this.time.push(time);
    for (const [name, values] of this.values) values.push(sample[name] ?? null);
    if (this.time.length > MAX_SAMPLES) {
      this.time.shift();
      for (const values of this.values.values()) values.shift();
    }
    if (!document.hidden) this.draw();
  }

  showEmpty(why = "Memory over time will appear here within seconds.") {
    this.destroy();
    replace(this.box, notice("No timeline yet", why));
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
  }

  /** The series of the selected kind: of a kind of the heap, if there are figures of it; otherwise of resident memory. */
  get series() {
    const ofHeap = HEAP.filter(([kind]) => kind === state.kind && this.values.get(kind)?.some((value) => value !== null));
    return ofHeap.length ? ofHeap : STACKED;
  }

  /** The stacked points of all kinds; a missing sample is a gap. */
  data() {
    const { series } = this;
    const shown = series === STACKED ? STACKED.filter(([, name]) => this.values.get(name)?.some((value) => value)) : series;
    /** @type {number[]} */
    const times = [];
    const lines = /** @type {(number | null)[][]} */ (shown.map(() => []));
    this.time.forEach((time, i) => {
      if (i && this.step && time - this.time[i - 1] > 3.5 * this.step) {
        times.push((this.time[i - 1] + this.step) / 1000);
        for (const line of lines) line.push(null);
      }
      times.push(time / 1000);
      let sum = 0;
      shown.forEach(([, name], n) => {
        const value = this.valueAt(name, i)[0];
        lines[n].push(value === null ? null : (sum += value));
      });
    });
    // The largest sum is drawn first, and the smaller ones over it.
    return { data: [times, ...lines.reverse()], lines: shown.map(([kind]) => kind).reverse() };
  }

  /**
   * A figure at a sample, and whether it is from an earlier sample: the page cache and the heap are read only with reports, so
   * their last value is drawn until the next one.
   * @returns {[number | null, boolean]}
   */
  valueAt(/** @type {string} */ name, /** @type {number} */ index) {
    const values = this.values.get(name) ?? [];
    let known = index;
    while ((name === "cache" || isHeapKind(name)) && known > 0 && values[known] === null) known--;
    return [values[known] ?? null, known < index];
  }

  /** How many events were lost between each sample and the one before. A run of memprof begins after a sample without figures. */
  get lost() {
    let before = 0;
    return (this.values.get(LOST) ?? []).map((value, i) => {
      const more = Math.max((value ?? before) - before, 0);
      before = this.isOpened && this.values.get("rss_anon")?.[i] == null ? 0 : value ?? before;
      return more;
    });
  }

  draw() {
    if (this.time.length < 2) return this.showEmpty();
    const { data, lines } = this.data();
    const signature = `${lines.join()} ${isDark()}`;
    if (this.plot && this.signature === signature) {
      // Without `false`, uPlot would queue the old range again.
      this.plot.setData(data, false);
      this.showRange();
    } else {
      this.destroy();
      this.signature = signature;
      replace(this.box);
      // @ts-ignore: uPlot is a global from a separate script
      this.plot = new uPlot(this.options(lines), data, this.box);
      this.listen();
      this.showRange();
    }
    this.showLegend(lines);
  }

  options(/** @type {string[]} */ lines) {
    const text = colour("text");
    const unit = unitOf(lines[0]);
    const largest = (/** @type {any} */ plot) => plot.data.slice(1).flat().reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b ?? 0), 0);
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui" };
    const times = (/** @type {any} */ _, /** @type {number[]} */ ticks) => {
      const short = ticks.length < 2 || ticks[1] - ticks[0] >= 60;
      return ticks.map((s) => clock(s * 1000).slice(0, short ? 5 : 8));
    };
    return {
      width: Math.max(200, this.box.clientWidth),
      height: this.height,
      padding: [NAMES, null, 0, null],
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false, click: () => {} }, y: false, points: { show: false } },
      scales: { x: { time: true }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ max) => [0, ticksTo(max, unit).end] } },
      series: [{}, ...lines.map((kind) => ({ label: label(kind), stroke: colour(kind), fill: colour(kind), width: 1, points: { show: false } }))],
      axes: [{ ...axis, ticks: { ...grid, size: 4 }, gap: 2, values: times, incrs: TICK_SECONDS, space: 90, size: 22 }, { ...axis, size: 74, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((v) => amount(v, unit)), splits: (/** @type {any} */ plot) => ticksTo(largest(plot), unit).ticks }],
      hooks: {
        setSelect: [(/** @type {any} */ plot) => this.selectRange(plot)],
        setCursor: [(/** @type {any} */ plot) => {
          this.showLegend(lines, plot.cursor.idx);
          this.hover(plot.cursor.idx);
        }],
        draw: [(/** @type {any} */ plot) => this.drawMarks(plot)],
      },
    };
  }

  /**
   * Listens to clicks. A click on a mark compares it with now; a double click anywhere selects all of the time. uPlot's own
   * rule, which ignores a click after the smallest move, is off: users move a little when they point at a line.
   */
  listen() {
    const over = this.plot.over;
    let pressed = 0;
    over.addEventListener("dblclick", () => this.showAll());
    over.addEventListener("mousedown", (/** @type {MouseEvent} */ event) => (pressed = event.offsetX));
    over.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      if (Math.abs(event.offsetX - pressed) >= MIN_DRAG) return;
      const mark = this.marks.find((m) => Math.abs(this.plot.valToPos(timeOf(m) / 1000, "x") - event.offsetX) < 6);
      if (mark?.id) this.open(mark);
      else if (this.recorded) this.selectMoment(this.momentAt(event.offsetX));
    });
    over.addEventListener("wheel", (/** @type {WheelEvent} */ event) => this.recorded && this.zoom(event), { passive: false });
  }

  /** The moment nearest to a pixel, in ms since 1970. */
  momentAt(/** @type {number} */ x) {
    const at = this.plot.posToVal(x, "x") * 1000;
    return this.time.reduce((best, time) => (Math.abs(time - at) < Math.abs(best - at) ? time : best), this.time[0]);
  }

  /** Shows a moment: in the difference as the later one, in every other view as the report. */
  selectMoment(/** @type {number} */ time) {
    change(state.view === "diff" ? { to: `@${time}`, zoom: "", sel: "" } : { mark: `@${time}`, zoom: "", sel: "" }, true);
  }

  /** Selects the moment before or after the selected one. */
  stepBy(/** @type {number} */ by) {
    if (!this.recorded || !this.time.length) return;
    const selected = momentOf(state.view === "diff" ? state.to : state.mark) ?? this.time[this.time.length - 1];
    const at = this.time.findLastIndex((time) => time <= selected);
    this.selectMoment(this.time[Math.min(Math.max(at + by, 0), this.time.length - 1)]);
  }

  /** Zooms in or out around the pointer. */
  zoom(/** @type {WheelEvent} */ event) {
    event.preventDefault();
    const { min, max } = this.plot.scales.x;
    const at = this.plot.posToVal(event.offsetX, "x");
    const factor = event.deltaY < 0 ? 0.7 : 1 / 0.7;
    const [from, to] = [at - (at - min) * factor, at + (max - at) * factor];
    change({ t0: String(Math.floor(from)), t1: String(Math.ceil(Math.max(to, from + 2))) });
    if (this.isOpened) this.refreshSoon();
  }

  /** Shows all time. */
  showAll() {
    change({ t0: "", t1: "" });
    if (this.isOpened) this.refreshSoon();
  }

  selectRange(/** @type {any} */ plot) {
    if (plot.select.width < MIN_DRAG) return;
    const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((x) => plot.posToVal(x, "x"));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (this.recorded) {
      const [a, b] = [from, to].map((seconds) => this.momentAt(plot.valToPos(seconds, "x")));
      return change({ view: "diff", from: `@${a}`, to: `@${b}`, mark: "", zoom: "", sel: "" }, true);
    }
    change({ t0: String(Math.floor(from)), t1: String(Math.ceil(to)) });
  }

  /** Shows the selected range or, by default, all samples and marks. */
  showRange() {
    if (!this.plot) return;
    const { time } = this;
    const newest = Math.max(time[time.length - 1], ...this.marks.map(timeOf));
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
      // The middle of a pixel, for a sharp line.
      const x = Math.floor(plot.valToPos(timeOf(mark) / 1000, "x", true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour(mark.oom_kill ? "bad" : "text");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      shown.push({ mark, x: plot.valToPos(timeOf(mark) / 1000, "x") });
    }
    this.drawLosses(plot);
    this.drawSelection(plot);
    ctx.restore();
    plot.over.append(this.markLabels.element);
    this.markLabels.show(shown, plot.over.clientWidth);
  }

  /** Marks at the bottom the time in which events were lost. */
  drawLosses(/** @type {any} */ plot) {
    const { ctx, bbox } = plot;
    const height = 4 * devicePixelRatio;
    ctx.fillStyle = colour("bad");
    this.lost.forEach((more, i) => {
      if (!more) return;
      const [from, to] = [this.time[Math.max(i - 1, 0)], this.time[i]].map((time) => plot.valToPos(time / 1000, "x", true));
      const [left, right] = [Math.max(from, bbox.left), Math.min(Math.max(to, from + height), bbox.left + bbox.width)];
      if (right > left) ctx.fillRect(left, bbox.top + bbox.height - height, right - left, height);
    });
  }

  /** Draws the selected moment, or the span of the difference. */
  drawSelection(/** @type {any} */ plot) {
    const { ctx, bbox } = plot;
    const moments = (state.view === "diff" ? [state.from, state.to] : [state.mark]).map(momentOf);
    const x = moments.map((time) => (time === null ? null : plot.valToPos(time / 1000, "x", true)));
    ctx.setLineDash([]);
    ctx.lineWidth = 2;
    ctx.strokeStyle = ctx.fillStyle = colour("accent");
    for (const at of x) {
      if (at === null || at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    if (x.length < 2 || x[0] === null || x[1] === null) return;
    const [left, right] = [Math.max(Math.min(x[0], x[1]), bbox.left), Math.min(Math.max(x[0], x[1]), bbox.left + bbox.width)];
    ctx.globalAlpha = 0.15;
    if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.globalAlpha = 1;
  }

  /** Shows the kinds with their figures, now or at the cursor. */
  showLegend(/** @type {string[]} */ lines, /** @type {number | null} */ index = null) {
    const when = index === null ? null : this.plot?.data[0][index];
    const i = when ? this.time.indexOf(Math.round(when * 1000)) : this.time.length - 1;
    if (i < 0) return;
    const pointed = index === null ? [] : this.marks.filter((mark) => Math.abs(this.plot.valToPos(timeOf(mark) / 1000, "x") - this.plot.cursor.left) < 6);
    const texts = lines.slice().reverse().map((kind) => {
      const name = this.series.find(([one]) => one === kind)?.[1] ?? "";
      const [value, old] = this.valueAt(name, i);
      return [kind, `${label(kind)} ${amount(value ?? NaN, unitOf(kind))}${isHeapKind(kind) ? asCounted(" (estimated)") : ""}${old ? " (last known)" : ""}`];
    });
    const lost = when ? this.lost[i] : 0;
    if (lost) texts.push(["lost", `${number(lost)} events lost`]);
    const at = when ? `at ${clock(this.time[i])}` : "now";
    replace(this.figures, h("span", { class: "faint" }, at), pointed.length > 0 && h("b", {}, pointed.map((mark) => mark.name ?? mark.id).join(", ")), ...texts.map(([kind, text]) => h("span", {}, h("i", { class: `swatch ${kind}` }), text)));
    this.reset.hidden = !state.t0;
    setProperties(this.box, { role: "img", "aria-label": `Memory over time, ${at}: ${texts.map(([, text]) => text).join(", ")}` });
  }

  /** Notes the sample at the cursor, of which the changes are shown when it rests there. */
  hover(/** @type {number | null} */ index) {
    const when = index == null ? null : this.plot?.data[0][index];
    const at = when ? this.time.indexOf(Math.round(when * 1000)) : -1;
    const hovered = this.recorded && at > 0 ? at : null;
    if (hovered === this.hovered) return;
    this.hovered = hovered;
    replace(this.changes);
    if (hovered !== null) this.showChangesSoon();
  }

  /** Shows which functions changed most between the sample at the cursor and the one before. */
  async showChanges() {
    const at = this.hovered;
    if (at === null) return;
    const [from, to] = [this.time[at - 1], this.time[at]];
    // Without figures, memprof was not running.
    if (this.values.get("rss_anon")?.[at - 1] == null) return;
    const { rows } = await api.mostChanged(`@${from}`, `@${to}`).catch(() => ({ rows: [] }));
    if (this.hovered !== at || this.time[at] !== to) return;
    const changed = rows.filter((row) => row.self).map((row) => h("span", {}, `${functionName(row)} ${signed(row.self, row.self_error, unitOf(state.kind))}`));
    replace(this.changes, h("span", { class: "faint" }, changed.length ? `since ${clock(from)}` : `nothing changed since ${clock(from)}`), ...changed);
  }

  fit() {
    if (this.plot && this.box.clientWidth > 100) this.plot.setSize({ width: this.box.clientWidth, height: this.height });
  }
}
