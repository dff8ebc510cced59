// A stream breaks in the middle of a turn; the client comes back by its cursor, by load and by resume. Every event is heard once.

import assert from 'node:assert/strict';
import { ask, assertKnown, assertNumberedWithoutGaps, finish, kind, listen, makeClient, openSession, said, sdk } from './lib.mjs';

const { client } = makeClient();
const session = await openSession(client, 'storyteller');
const { promptId } = await session.submitPrompt(ask('Alice opened the door'));

// The stream is dropped again and again; the client's own cursor continues each time where the last one ended.
const events = [];
for (let drop = 0; drop < 4; drop++) {
  const heard = listen(session);
  await heard.until(() => heard.events.filter((event) => kind(event) === 'agent_message_chunk').length >= 5);
  heard.stop();
  await heard.ended;
  events.push(...heard.events);
}

// Another client comes while the turn goes on: what was told, and then the rest on a stream, is everything.
const loaded = await sdk.DaemonSessionClient.load(makeClient().client, session.sessionId);
assert.equal(loaded.attached, true);
assert.equal(loaded.hasActivePrompt, true);
assert.equal(loaded.replaySnapshotComplete, true);
assert.notEqual(loaded.clientId, session.clientId);
const { compactedReplay, liveJournal } = loaded.consumeReplaySnapshot();
const late = listen(loaded);

// A third one wants nothing of the past.
const resumed = await sdk.DaemonSessionClient.resume(makeClient().client, session.sessionId);
const latest = listen(resumed);

const last = listen(session);
const isEnd = (event) => event.type === 'turn_complete' && event.data.promptId === promptId;
await Promise.all([last.until(isEnd), late.until(isEnd), latest.until(isEnd)]);
for (const each of [last, late, latest]) {
  each.stop();
  await each.ended;
  assertKnown(each.events);
}
events.push(...last.events);
const numbered = events.filter((event) => event.id !== undefined);
assert.equal(assertNumberedWithoutGaps(numbered)[0], 1);

const whole = said(numbered);
assert.ok(whole.length > 100);
const told = [...compactedReplay, ...liveJournal];
assertKnown(told);
assert.equal(said(told) + said(late.events), whole, 'what load told and what followed it are the whole answer');
assert.ok(whole.endsWith(said(latest.events)));
assert.ok(said(latest.events).length < whole.length);

// Later still, everything is over and told compact.
const after = await sdk.DaemonSessionClient.load(makeClient().client, session.sessionId);
assert.equal(after.hasActivePrompt, false);
assert.deepEqual(after.replaySnapshot.compactedReplay.map(kind), ['user_message_chunk', 'agent_message_chunk', 'turn_complete']);
assert.deepEqual(after.replaySnapshot.liveJournal, []);
assert.equal(said(after.replaySnapshot.compactedReplay), whole);
assert.deepEqual(await after.prompt(ask('The rabbit ran')), { stopReason: 'end_turn' });

// An epoch that is not the session's is told, and everything is replayed.
const strange = [];
for await (const event of client.subscribeEvents(session.sessionId, { lastEventId: 3, epoch: 'another-life' })) {
  strange.push(event);
  if (event.type === 'replay_complete') break;
}
assert.equal(strange[0].type, 'state_resync_required');
assert.equal(strange[0].data.reason, 'epoch_reset');
assert.equal(assertNumberedWithoutGaps(strange)[0], 1);
assertKnown(strange);

// A client id that the session has forgotten: the client heals itself with one resume, and the prompt runs once.
await session.detach();
assert.deepEqual(await session.prompt(ask('The queen said')), { stopReason: 'end_turn' });
await assert.rejects(sdk.DaemonSessionClient.load(client, 'no-such-session'), (error) => error.body.code === 'session_not_found');
finish({ events: numbered.length });
