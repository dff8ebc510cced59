// The client's own ACP transport: the same client classes, but every call goes to /acp as JSON-RPC.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { ask, finish, listen, makeClient, options, sdk } from './lib.mjs';

const home = path.join(options.prefix, 'node_modules', '@qwen-code', 'sdk');
const manifest = JSON.parse(fs.readFileSync(path.join(home, 'package.json'), 'utf8'));
const transports = await import(pathToFileURL(path.join(home, manifest.exports['./daemon/transports'].import)));

function connect() {
  const transport = new transports.AcpHttpTransport(options.url, options.token, fetch);
  return { transport, ...makeClient({ transport, maxPendingPromptsPerSession: null }) };
}

function open(client, model) {
  return sdk.DaemonSessionClient.createOrAttach(client, { modelServiceId: model, sessionScope: 'thread' });
}

const said = (events) => events.filter((event) => event.type === 'agent_message_chunk').map((event) => event.data.content.text).join('');

// Prompts without a subscription, one after the other: their responses and their 202s come on two connections.
const one = connect();
const quick = await open(one.client, 'sentiment');
assert.equal(quick.attached, false);
for (let turn = 0; turn < options.turns; turn++) {
  assert.equal((await quick.prompt(ask('good'))).stopReason, 'end_turn');
}

// With one: the pieces of the answer, and the end.
const teller = await open(one.client, 'storyteller');
const heard = listen(teller);
assert.equal((await teller.prompt(ask('Alice opened the door'))).stopReason, 'end_turn');
await heard.until((event) => event.type === 'turn_complete');
assert.ok(said(heard.events).length > 20);
assert.ok(heard.events.every((event) => event.v === 1));

// Another client loads the session, and its stream tells everything again.
const two = connect();
const loaded = await sdk.DaemonSessionClient.load(two.client, teller.sessionId);
assert.equal(loaded.sessionId, teller.sessionId);
const again = listen(loaded);
await again.until((event) => event.type === 'turn_complete');
assert.equal(said(again.events), said(heard.events));
again.stop();
heard.stop();
await Promise.all([again.ended, heard.ended]);

// Cancel; a full queue; another model; close. Prompts of two connections are in one queue.
const slow = await open(one.client, 'slow');
const slowHeard = listen(slow);
const first = slow.prompt(ask('30 seconds'));
await slowHeard.until((event) => event.type === 'user_message_chunk');
await slow.cancel();
assert.equal((await first).stopReason, 'cancelled');

const pending = [1, 2, 3, 4, 5].map(() => slow.prompt(ask('30 seconds')).catch((error) => error));
await slowHeard.until(() => slowHeard.events.filter((event) => event.type === 'pending_prompt_added').length === 4);
const other = await sdk.DaemonSessionClient.load(two.client, slow.sessionId);
const full = await other.prompt(ask('1 second')).catch((error) => error);
assert.equal(full.body.data.errorKind, 'prompt_queue_full');
assert.deepEqual([full.body.data.sessionId, full.body.data.limit, full.body.data.pendingCount], [slow.sessionId, 5, 5]);

assert.deepEqual(await quick.setModel('slow'), { modelId: 'slow' });
await assert.rejects(quick.setModel('nothing'), (error) => error.status === 404 && error.body.data.errorKind === 'unknown_model');
await assert.rejects(sdk.DaemonSessionClient.load(two.client, 'no-such-session'), (error) => error.status === 404);

// The transport makes a 200 of every result, and the client takes only a 204 for this one: a fault between the two of them.
await assert.rejects(slow.close(), (error) => error.status === 200);
for (const outcome of await Promise.all(pending)) {
  assert.equal(outcome.body?.data?.errorKind, 'session_closed', String(outcome));
}
await slowHeard.ended;
assert.equal(slowHeard.events.at(-1).type, 'session_closed');

for (const each of [one, two]) each.transport.dispose();
finish();
