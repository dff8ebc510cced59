// Create, attach, choose an id, close: what a client does before and after it prompts.

import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import { ask, finish, makeClient, sdk } from './lib.mjs';

const { client, requests } = makeClient();
assert.deepEqual(await client.health(), { status: 'ok' });
const capabilities = await client.capabilities();
assert.equal(capabilities.limits.maxPendingPromptsPerSession, 5);

const { createOrAttach } = sdk.DaemonSessionClient;
const shared = { modelServiceId: 'slow' };
const together = await Promise.all([1, 2, 3, 4].map(() => createOrAttach(client, shared)));
assert.equal(new Set(together.map((session) => session.sessionId)).size, 1);
assert.deepEqual(together.map((session) => session.attached).sort(), [false, true, true, true]);
assert.equal(new Set(together.map((session) => session.clientId)).size, 4);

const again = await createOrAttach(client, shared, together[0].clientId);
assert.equal(again.clientId, together[0].clientId);

const own = await createOrAttach(client, { ...shared, sessionScope: 'thread' });
assert.notEqual(own.sessionId, again.sessionId);
assert.equal(own.attached, false);
assert.equal(own.modelApplied, true);

const wanted = crypto.randomUUID();
const chosen = await createOrAttach(client, { sessionId: wanted });
assert.equal(chosen.sessionId, wanted);

for (const session of [again, own, chosen]) {
  await session.close();
  await session.close(); // 404, which the client takes for closed
}
await assert.rejects(own.prompt(ask('1 second')), (error) => error.status === 404 && error.body.code === 'session_not_found');
finish({ requests: requests.length });
