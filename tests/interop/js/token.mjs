// A daemon that asks for a token.

import assert from 'node:assert/strict';
import { ask, finish, listen, makeClient, openSession, options, sdk } from './lib.mjs';

for (const token of [undefined, 'wrong-wrong-wrong-wrong']) {
  await assert.rejects(openSession(makeClient({ token }).client, 'sentiment'), (error) => {
    assert.ok(error instanceof sdk.DaemonHttpError);
    assert.equal(error.status, 401);
    assert.equal(error.body.error, 'Unauthorized');
    return true;
  });
}
assert.deepEqual(await makeClient().client.health(), { status: 'ok' });
const session = await openSession(makeClient({ token: options.token }).client, 'sentiment');
assert.deepEqual(await session.prompt(ask('good')), { stopReason: 'end_turn' });
const heard = listen(session);
assert.deepEqual(await session.prompt(ask('better')), { stopReason: 'end_turn' });
heard.stop();
await heard.ended;
finish();
