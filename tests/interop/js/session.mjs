// The client's other methods: the queue, names, status, heartbeat, the list, the model, a branch, leaving.

import assert from 'node:assert/strict';
import { ask, assertKnown, finish, kind, listen, makeClient, openSession, said } from './lib.mjs';

const { client } = makeClient();
const session = await openSession(client, 'slow');
const heard = listen(session);

const first = await session.submitPrompt(ask('0.6 first'));
const second = await session.submitPrompt(ask('1 second'));
const third = await session.submitPrompt(ask('0.01 third'));
const { pendingPrompts } = await session.getPendingPrompts();
assert.deepEqual(
  pendingPrompts.map((prompt) => [prompt.promptId, prompt.text, prompt.state]),
  [
    [first.promptId, '0.6 first', 'running'],
    [second.promptId, '1 second', 'queued'],
    [third.promptId, '0.01 third', 'queued'],
  ],
);
assert.ok(pendingPrompts.every((prompt) => prompt.originatorClientId === session.clientId));
assert.deepEqual(await session.removePendingPrompt(second.promptId), { removed: true });
assert.deepEqual(await session.removePendingPrompt(second.promptId), { removed: false });
assert.equal((await session.status()).hasActivePrompt, true);

// A branch comes behind the prompts, and with what they told.
const branched = await client.branchSession(session.sessionId, { name: 'a branch' }, session.clientId);
assert.equal(branched.displayName, 'a branch');
assert.equal(branched.forkedFrom.sessionId, session.sessionId);
const told = [...branched.compactedReplay, ...branched.liveJournal];
assertKnown(told);
assert.deepEqual(
  told.filter((event) => kind(event) === 'user_message_chunk').map((event) => event.data.update.content.text),
  ['0.6 first', '0.01 third'],
);
assert.match(said(told), /computed for 0.600 s.*computed for 0.010 s/);

// One answer beside the prompts, which nobody else hears of.
const generated = [];
for await (const event of session.generateContent('0.05 beside')) generated.push(event);
assert.deepEqual(generated.map((event) => event.type), ['started', 'delta', 'done']);
assert.equal(generated[0].model, 'slow');
assert.match(generated[1].text, /computed for 0.050 s/);
assert.doesNotMatch(said(heard.events), /0.050 s/);

await session.setModel('sentiment');
await session.prompt(ask('What a wonderful day'));
await assert.rejects(session.setModel('nothing'), (error) => error.status === 404 && error.body.code === 'unknown_model');
assert.deepEqual(await session.updateMetadata({ displayName: 'a name' }), { displayName: 'a name' });
assert.equal((await session.heartbeat()).clientId, session.clientId);
const listed = await client.listWorkspaceSessionsPage(session.workspaceCwd, { pageSize: 1000 });
const mine = listed.sessions.find((one) => one.sessionId === session.sessionId);
assert.equal(mine.displayName, 'a name');
assert.equal(mine.clientCount, 1);
assert.ok((await client.listWorkspaceSessionsPage('/', { pageSize: 1 })).nextCursor !== undefined);

const report = await client.daemonStatus('full');
assert.ok(report.full.sessions.some((one) => one.sessionId === session.sessionId && one.subscriberCount === 1));

await heard.until((event) => event.type === 'model_switch_failed');
await heard.until((event) => event.type === 'session_metadata_updated');
heard.stop();
await heard.ended;
assertKnown(heard.events);
const kinds = heard.events.map(kind);
for (const expected of ['session_branched', 'model_switched', 'model_switch_failed', 'session_metadata_updated']) {
  assert.equal(kinds.filter((name) => name === expected).length, 1, expected);
}
await session.detach();
await session.detach();
await client.closeSession(branched.sessionId, branched.clientId);
await client.closeSession(session.sessionId);
finish();
