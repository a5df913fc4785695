// Live updates: totals as Server-Sent Events, or by polling if events do not work; and the refreshes of the view.

import { api, ApiError, newestReport } from "./api.js";
import { messageOf } from "./dom.js";
import { isOffline } from "./offline.js";
import { state } from "./state.js";

/** @typedef {import("./api.js").Summary} Summary */

/** Polling interval without events, in ms. */
const POLL_MS = 3000;
/** Number of polls after which events are tried again. */
const POLLS_BEFORE_RETRY = 10;
/** Minimum time between two refreshes of a view, in ms. */
const REFRESH_MS = 3000;

/**
 * @typedef {object} Callbacks
 * @property {(summary: Summary) => void} summary
 * @property {(sample: Record<string, number | null>) => void} sample
 * @property {(why: string) => void} waiting there is no report yet
 * @property {() => Promise<void>} refresh
 * @property {(status: any, why: string, tryAgain?: () => void) => void} connection
 * @property {(taken: number | undefined, why: string) => void} saved
 */

export class LiveUpdates {
  constructor(/** @type {Callbacks} */ callbacks) {
    this.callbacks = callbacks;
    /** @type {EventSource | import("./token.js").TokenEventSource | null} */
    this.events = null;
    /** Number of the newest report. */
    this.newest = -1;
    /** Number of the report that the view shows. */
    this.shown = -2;
    /** When the next refresh may begin, in ms since the page was opened. */
    this.nextRefresh = 0;
    this.isRefreshing = this.isLost = this.ended = false;
    this.timer = 0;
    /** The name of the saved profile that the page shows, which never changes; empty for a live target. */
    this.saved = isOffline ? "this report" : "";
    /** When the saved profile was taken, in ms since 1970. @type {number | undefined} */
    this.taken = undefined;
  }

  start() {
    this.callbacks.connection("loading", "");
    this.refresh();
    Promise.all([this.fetchSummary(), this.fetchSource()]).then(() => this.isLost || this.resume());
    document.addEventListener("visibilitychange", () => this.resume());
    // Shows a report that arrived during a refresh, or too soon after one.
    setInterval(() => this.refreshIfDue(), 500);
  }

  /** Fetches whether memprof shows a saved profile. */
  async fetchSource() {
    if (!isOffline) this.saved = await api.health().then(({ opened }) => opened ?? "", () => "");
    document.body.classList.toggle("saved", this.saved !== "");
  }

  /** Listens to events while the page is visible and not paused. */
  resume() {
    clearTimeout(this.timer);
    this.events?.close();
    this.events = null;
    if (this.saved) this.callbacks.saved(this.taken, `From ${this.saved}; it does not change.`);
    else if (state.pause) this.callbacks.connection("paused", "Nothing is refreshed until you resume.");
    else if (!document.hidden && this.isLost) this.tryAgain();
    else if (!document.hidden) this.listen();
  }

  listen() {
    const events = api.events();
    this.events = events;
    const data = (/** @type {any} */ event) => JSON.parse(event.data);
    events.addEventListener("summary", (event) => this.receive(data(event)));
    events.addEventListener("sample", (event) => this.callbacks.sample(data(event)));
    events.addEventListener("target", (event) => data(event) === null && this.callbacks.waiting("The target has not started yet."));
    events.addEventListener("open", () => this.connected());
    events.addEventListener("error", () => {
      if (events !== this.events) return;
      events.close();
      this.events = null;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.poll(0), 300);
    });
  }

  /** Polls while memprof answers. Tries events again after every `POLLS_BEFORE_RETRY` polls. */
  async poll(/** @type {number} */ polls) {
    const answered = await this.fetchSummary();
    // memprof ends with the program that it started: without an answer, the user says when to try again.
    if (!answered || state.pause || document.hidden || this.events) return;
    if (polls >= POLLS_BEFORE_RETRY) return this.listen();
    this.timer = setTimeout(() => this.poll(polls + 1), POLL_MS);
  }

  /** Asks memprof again after it did not answer, and follows it if it does. */
  async tryAgain() {
    if (await this.fetchSummary()) this.listen();
  }

  /** Fetches the totals; true if the server answered. */
  async fetchSummary() {
    try {
      this.receive(await api.summary());
      return true;
    } catch (error) {
      const why = messageOf(error);
      const status = error instanceof ApiError ? error.status : 0;
      if (status === 503) this.callbacks.waiting(why);
      else this.lost(why);
      return status !== 0;
    }
  }

  lost(/** @type {string} */ why) {
    this.isLost = true;
    this.callbacks.connection("lost", why, () => this.tryAgain());
  }

  connected() {
    if (this.isLost) this.shown = -2;
    this.isLost = false;
    if (!state.pause && !this.saved) this.callbacks.connection(this.ended ? "ended" : "live", this.ended ? "This is the target's last profile." : "");
  }

  receive(/** @type {Summary} */ summary) {
    this.newest = summary.report.number;
    this.taken = summary.report.taken;
    this.ended = !summary.target.alive;
    this.callbacks.summary(summary);
    this.connected();
    this.refreshIfDue();
  }

  /** Refreshes if there is a new report and the minimum time has passed. */
  refreshIfDue() {
    if (!state.pause && !document.hidden && !this.isLost && this.shown !== this.newest && performance.now() >= this.nextRefresh) this.refresh();
  }

  /** Refreshes the view. The pause until the next refresh is at least nine times the duration of this one. */
  async refresh() {
    if (this.isRefreshing) return;
    this.isRefreshing = true;
    const start = performance.now();
    const newest = this.newest;
    try {
      await this.callbacks.refresh();
      this.shown = Math.max(newest, newestReport().number);
    } finally {
      this.isRefreshing = false;
      const now = performance.now();
      this.nextRefresh = now + (newest < 0 ? 0 : Math.max(REFRESH_MS, 9 * (now - start)));
    }
  }
}
