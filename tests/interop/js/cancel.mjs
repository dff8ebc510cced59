// Cancel, abort on a subscription, abort without one, a deadline, one queued prompt removed.

import assert from 'node:assert/strict';
import { ask, assertKnown, assertRejects, finish, kind, listen, makeClient, openSession, sdk, terminalsOf } from './lib.mjs';

const { client, requests } = makeClient();
const session = await openSession(client, 'slow');
const heard = listen(session);
const started = (text) => heard.until((event) => kind(event) === 'user_message_chunk' && event.data.update.content.text === text);

// Only the running prompt is cancelled.
const cancelled = session.prompt(ask('1 cancelled'));
await started('1 cancelled');
const following = session.prompt(ask('0.05 following'));
await heard.until((event) => event.type === 'pending_prompt_added');
await session.cancel();
assert.deepEqual(await cancelled, { stopReason: 'cancelled' });
await session.cancel(); // also when nothing, or another prompt, runs; a second one of the same prompt is not told

// A caller that gives up on a subscription cancels by itself, and gets its own reason back.
const leaving = await openSession(client, 'slow');
const leavingHeard = listen(leaving);
const controller = new AbortController();
const aborted = leaving.prompt(ask('1 aborted'), controller.signal);
const { promptId } = await leavingHeard.until((event) => kind(event) === 'user_message_chunk');
await new Promise((resolve) => setTimeout(resolve, 50)); // until it has read its 202
controller.abort(new Error('enough'));
await assertRejects(aborted, (error) => assert.equal(error.message, 'enough'));
const end = await leavingHeard.until((event) => terminalsOf([event], promptId).length === 1);
assert.equal(end.data.stopReason, 'cancelled');

// Without a subscription it sends no cancel: the turn runs on.
const silent = await openSession(client, 'slow');
const silentController = new AbortController();
const before = requests.filter((sent) => sent.path.endsWith('/cancel')).length;
const left = silent.prompt(ask('0.5 goes on'), silentController.signal);
const silentHeard = listen(silent);
await silentHeard.until((event) => kind(event) === 'user_message_chunk');
setTimeout(() => silentController.abort(), 100);
await assertRejects(left, (error) => assert.match(String(error), /SSE stream ended|AbortError/));
assert.equal(requests.filter((sent) => sent.path.endsWith('/cancel')).length, before);
assert.equal((await silentHeard.until((event) => event.type === 'turn_complete')).data.stopReason, 'end_turn');

// A deadline is an error of the turn; the next prompt starts.
const late = await openSession(client, 'slow');
await assertRejects(late.prompt(ask('1 late', { deadlineMs: 200 })), (error) => {
  assert.ok(error instanceof sdk.DaemonHttpError);
  assert.equal(error.body, 'prompt_deadline_exceeded');
  assert.match(error.message, /exceeded the 200ms deadline/);
});
const lateHeard = listen(late);
await assertRejects(late.prompt(ask('1 late again', { deadlineMs: 200 })), (error) => {
  assert.equal(error.body, 'prompt_deadline_exceeded');
});

for (const each of [heard, leavingHeard, silentHeard, lateHeard]) {
  each.stop();
  await each.ended;
  assertKnown(each.events);
}
finish();
