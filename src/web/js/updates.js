// Live updates: totals as Server-Sent Events, or by polling if events do not work.

import { api, ApiError, newestReport } from "./api.js";
import { isSaved } from "./offline.js";
import { state } from "./state.js";

/** @typedef {import("./api.js").Summary} Summary */

/** Polling interval without events, in ms; and the number of polls after which events are tried again. */
const POLL = 3000;
const AGAIN = 10;
/** Minimum time between two refreshes of a view, in ms. */
const REFRESH = 3000;

/**
 * @typedef {object} Does
 * @property {(summary: Summary) => void} summary
 * @property {(sample: Record<string, number | null>) => void} sample
 * @property {(why: string) => void} waiting there is no report yet
 * @property {() => Promise<void>} refresh
 * @property {(how: any, why: string) => void} connection
 */

export class Live {
  constructor(/** @type {Does} */ does) {
    this.does = does;
    /** @type {EventSource | import("./token.js").Events | null} */
    this.events = null;
    /** Numbers of the newest known report and of the one that the view shows. */
    this.known = -1;
    this.shown = -2;
    this.ready = 0;
    this.busy = this.isLost = this.ended = false;
    this.timer = 0;
    /** What a saved profile is called, which never changes; empty for a live target. */
    this.saved = isSaved ? "this report" : "";
  }

  start() {
    this.does.connection("loading", "");
    this.refresh();
    Promise.all([this.ask(), this.source()]).then(() => this.resume());
    document.addEventListener("visibilitychange", () => this.resume());
    // Picks up a report that arrived during a refresh, or too soon after one.
    setInterval(() => this.perhaps(), 500);
  }

  /** Finds out whether memprof shows a saved profile. */
  async source() {
    if (!isSaved) this.saved = await api.health().then(({ opened }) => opened ?? "", () => "");
    document.body.classList.toggle("saved", this.saved !== "");
  }

  /** Listens to events while the page is visible and not paused. */
  resume() {
    clearTimeout(this.timer);
    this.events?.close();
    this.events = null;
    if (this.saved) this.does.connection("saved", `Opened from ${this.saved}; it does not change.`);
    else if (state.pause) this.does.connection("paused", "Nothing is refreshed until you resume.");
    else if (!document.hidden) this.listen();
  }

  listen() {
    const events = api.events();
    this.events = events;
    const data = (/** @type {any} */ event) => JSON.parse(event.data);
    events.addEventListener("summary", (event) => this.took(data(event)));
    events.addEventListener("sample", (event) => this.does.sample(data(event)));
    events.addEventListener("target", (event) => data(event) === null && this.does.waiting("The target has not started yet."));
    events.addEventListener("open", () => this.connected());
    events.addEventListener("error", () => {
      if (events !== this.events) return;
      events.close();
      this.events = null;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.poll(0), 300);
    });
  }

  /** Polls. Tries events again when the connection is back, and after every `AGAIN` polls. */
  async poll(/** @type {number} */ times) {
    const wasLost = this.isLost;
    const answered = await this.ask();
    if (state.pause || document.hidden || this.events) return;
    if (answered && (wasLost || times >= AGAIN)) return this.listen();
    this.timer = setTimeout(() => this.poll(times + 1), POLL);
  }

  /** Fetches the totals; true if the server answered. */
  async ask() {
    try {
      this.took(await api.summary());
      return true;
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      const waits = error instanceof ApiError && error.status === 503;
      if (waits) this.does.waiting(why);
      else this.lost(why);
      return waits;
    }
  }

  lost(/** @type {string} */ why) {
    this.isLost = true;
    this.does.connection("lost", why);
  }

  connected() {
    if (this.isLost) this.shown = -2;
    this.isLost = false;
    if (!state.pause && !this.saved) this.does.connection(this.ended ? "ended" : "live", this.ended ? "This is its last profile." : "");
  }

  took(/** @type {Summary} */ summary) {
    this.known = summary.report.number;
    this.ended = !summary.target.alive;
    this.does.summary(summary);
    this.connected();
    this.perhaps();
  }

  /** Refreshes if there is a new report and the minimum time has passed. */
  perhaps() {
    if (!state.pause && !document.hidden && !this.isLost && this.shown !== this.known && performance.now() >= this.ready) this.refresh();
  }

  /** Refreshes the view. The next refresh waits at least nine times as long as this one took. */
  async refresh() {
    if (this.busy) return;
    this.busy = true;
    const start = performance.now();
    const about = this.known;
    try {
      await this.does.refresh();
      this.shown = Math.max(about, newestReport().number);
    } finally {
      this.busy = false;
      const now = performance.now();
      this.ready = now + (about < 0 ? 0 : Math.max(REFRESH, 9 * (now - start)));
    }
  }
}
