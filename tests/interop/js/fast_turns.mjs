// A turn that is over before the client has looked at its 202, again and again, on an open subscription.

import assert from 'node:assert/strict';
import { ask, assertNumberedWithoutGaps, finish, listen, makeClient, openSession, options, terminalsOf } from './lib.mjs';

const { client, requests } = makeClient({ maxPendingPromptsPerSession: null });
const session = await openSession(client, 'sentiment');
const heard = listen(session);

function inTime(promise, ms) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// What a busy page does to its own event loop; it decides in which order two sockets are looked at.
function beBusy(ms) {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

const took = [];
let hung = 0;
const reasons = {};
for (let turn = 0; turn < options.turns; turn++) {
  const began = performance.now();
  const answer = session.prompt(ask(`good ${turn}`));
  if (options.busyMs) setTimeout(() => beBusy(options.busyMs), turn % 7);
  try {
    const { stopReason } = await inTime(answer, 2000);
    assert.equal(stopReason, 'end_turn');
    took.push(performance.now() - began);
  } catch (error) {
    if (!options.count) throw error;
    hung += 1;
    reasons[error.message] = (reasons[error.message] ?? 0) + 1;
  }
}
heard.stop();
await heard.ended;
assertNumberedWithoutGaps(heard.events);
took.sort((one, other) => one - other);
finish({ statuses: requests.reduce((all, r) => ({ ...all, [r.status]: (all[r.status] ?? 0) + 1 }), {}), hung, reasons, error: String(heard.error), last: heard.events.at(-1), medianMs: took[took.length >> 1], worstMs: took.at(-1), terminals: heard.events.filter((e) => e.type === 'turn_complete').length });
