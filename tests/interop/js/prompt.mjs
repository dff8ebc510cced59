// A prompt whose answer is awaited, without a subscription and on one; what is streamed meanwhile.

import assert from 'node:assert/strict';
import { ask, assertKnown, assertNumberedWithoutGaps, finish, kind, listen, makeClient, openSession, said, terminalsOf } from './lib.mjs';

const { client, requests } = makeClient();
const session = await openSession(client, 'storyteller'); // says 60 words, 30 ms each

assert.deepEqual(await session.prompt(ask('Alice opened the door')), { stopReason: 'end_turn' });
assert.deepEqual(await client.prompt(session.sessionId, ask('The rabbit ran')), { stopReason: 'end_turn' });

const heard = listen(session); // a new session's cursor is 0: everything so far comes first
const { promptId } = await session.submitPrompt(ask('The queen said'));
await heard.until((event) => event.type === 'turn_complete' && event.data.promptId === promptId);
const turns = await Promise.all([session.prompt(ask('Alice grew')), session.prompt(ask('Alice shrank'))]);
assert.deepEqual(turns, [{ stopReason: 'end_turn' }, { stopReason: 'end_turn' }]);
await heard.until((event) => event.type === 'pending_prompt_completed');
heard.stop();
await heard.ended;

const events = heard.events.filter((event) => event.id !== undefined);
assert.equal(assertNumberedWithoutGaps(heard.events)[0], 1);
assertKnown(heard.events);
const prompts = [...new Set(events.map((event) => event.promptId))];
assert.equal(prompts.length, 5);
for (const prompt of prompts) {
  const mine = events.filter((event) => event.promptId === prompt);
  const kinds = mine.map(kind).filter((name) => !name.startsWith('pending_prompt_'));
  assert.equal(kinds[0], 'user_message_chunk');
  assert.equal(kinds.at(-1), 'turn_complete');
  assert.ok(kinds.slice(1, -1).every((name) => name === 'agent_message_chunk'));
  assert.ok(said(mine).length > 20);
  assert.equal(terminalsOf(events, prompt).length, 1);
}
// Of the last two, sent at once, one had to wait; its end and its place in the queue are told in order.
const waited = events.find((event) => event.type === 'pending_prompt_added').data.promptId;
assert.deepEqual(
  events.filter((event) => event.promptId === waited).map(kind).filter((name) => name !== 'agent_message_chunk'),
  ['pending_prompt_added', 'pending_prompt_started', 'user_message_chunk', 'turn_complete', 'pending_prompt_completed'],
);
finish({ prompts: requests.filter((sent) => sent.path.endsWith('/prompt')).length });
