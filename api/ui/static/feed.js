// Keeps the live state coming: listens, notices silence, comes back after a break, asks again and again where no stream
// is to be had.

import { Refused, ask, listen, sentence } from "./api.js";
import { SseParser } from "./sse.js";

const SILENCE_MS = 20_000;
const PROBE_MS = 5_000;
const POLL_MS = 2_000;
const POLLS_BEFORE_STREAM = 30;
const PAUSES_MS = [500, 1_000, 2_000, 4_000, 8_000, 15_000];

/**
 * The live state of the governor.
 *
 * `told` has: `state(frame)`; `events(list, fresh)`, where `fresh` means that what was told before is of another process;
 * `connection({kind, reason, retryAtMs})`, kind being `connecting`, `live`, `polled` or `lost`; `refused(sentence)` for a
 * token that is of no use; `clock(unixMs)`; `alive()` for every sign of life.
 */
export class Feed {
  constructor(token, told) {
    this.token = token;
    this.told = told;
    this.closing = new AbortController();
    this.startedAtMs = null;
    this.eventId = 0;
    this.failures = 0;
    this.wake = () => {};
  }

  /** Goes on until `close`, or until the token is refused. */
  async run() {
    while (!this.closing.signal.aborted) {
      let reason;
      try {
        this.connection("connecting");
        await this.probe();
        reason = await this.stream();
      } catch (error) {
        if (this.closing.signal.aborted) return;
        if (error instanceof Refused && [401, 403, 404].includes(error.status)) {
          this.close();
          this.told.refused(error.status === 404 ? NO_ROUTE : error.status === 401 ? WRONG : sentence(error));
          return;
        }
        reason = sentence(error);
      }
      if (reason !== null && !this.closing.signal.aborted) await this.pause(reason);
    }
  }

  close() {
    this.closing.abort();
    this.wake();
  }

  /** Waits no longer for the next attempt. */
  retry() {
    this.wake();
  }

  /** Asks who is there: the token, the clock, and whether it is the same process as before. */
  async probe(timeoutMs = PROBE_MS * 2) {
    const told = await ask(this.token, "admin/identities?size=1", { signal: this.closing.signal, timeoutMs });
    this.told.clock(told.atMs);
    this.process(told.startedAtMs);
    this.told.alive();
  }

  process(startedAtMs) {
    if (this.startedAtMs !== null && this.startedAtMs !== startedAtMs) {
      this.eventId = 0; // events are numbered anew in each process
      this.told.events([], true);
    }
    this.startedAtMs = startedAtMs;
  }

  /** Reads one stream to its end; says why it ended, null if it shall just begin anew. */
  async stream() {
    const ending = new AbortController();
    const signal = AbortSignal.any([ending.signal, this.closing.signal]);
    const silence = new Silence(async () => {
      try {
        await this.probe(PROBE_MS);
        silence.broken();
      } catch (error) {
        ending.abort(error);
      }
    });
    try {
      let body;
      try {
        body = await listen(this.token, this.eventId, signal);
      } catch (error) {
        if (error instanceof Refused && error.status === 429) return await this.poll(error);
        throw error;
      }
      const parser = new SseParser((frame) => this.frame(frame));
      const text = new TextDecoder();
      const reader = body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "The governor has closed the stream.";
        silence.broken();
        this.told.alive();
        parser.push(text.decode(value, { stream: true }));
      }
    } finally {
      silence.end();
      ending.abort();
    }
  }

  frame({ event, data }) {
    if (event === "state") {
      this.failures = 0;
      this.connection("live");
      this.told.state(JSON.parse(data));
    } else if (event === "recent") {
      const { events } = JSON.parse(data);
      if (events.length > 0) this.eventId = Math.max(this.eventId, events.at(-1).id);
      this.told.events(events, false);
    }
  }

  /** As many listen as may: asks every two seconds instead, and tries to listen again after a minute. */
  async poll(error) {
    for (let polls = 0; polls < POLLS_BEFORE_STREAM; polls += 1) {
      const told = await ask(this.token, "admin/identities", { signal: this.closing.signal });
      this.told.alive();
      this.told.clock(told.atMs);
      this.process(told.startedAtMs);
      this.failures = 0;
      this.connection("polled", sentence(error));
      this.told.state(told);
      await this.sleep(POLL_MS);
      if (this.closing.signal.aborted) break;
    }
    return null;
  }

  async pause(reason) {
    const base = PAUSES_MS[Math.min(this.failures, PAUSES_MS.length - 1)];
    const pauseMs = base * (0.8 + 0.4 * Math.random()); // not all pages at once
    this.failures += 1;
    this.connection("lost", reason, Date.now() + pauseMs);
    await this.sleep(pauseMs);
  }

  sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  connection(kind, reason = "", retryAtMs = null) {
    this.told.connection({ kind, reason, retryAtMs });
  }
}

const WRONG = "The governor does not know this token.";
const NO_ROUTE = "The governor has no token for operators any more, so there is nothing to see.";

/** Calls back when nothing has come for a while. */
class Silence {
  constructor(onSilence) {
    this.onSilence = onSilence;
    this.ended = false;
    this.broken();
  }

  broken() {
    clearTimeout(this.timer);
    if (!this.ended) this.timer = setTimeout(this.onSilence, SILENCE_MS);
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
  }
}
