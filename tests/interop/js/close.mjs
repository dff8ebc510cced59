// A session is closed while one prompt runs and one waits.

import assert from 'node:assert/strict';
import { ask, assertKnown, assertRejects, finish, kind, listen, makeClient, openSession } from './lib.mjs';

const { client } = makeClient();
const session = await openSession(client, 'slow');
const heard = listen(session);
const pending = [session.prompt(ask('1 running')), session.prompt(ask('1 waiting'))];
const settled = Promise.allSettled(pending);
await heard.until((event) => event.type === 'pending_prompt_added');
await heard.until((event) => kind(event) === 'user_message_chunk');
await session.close();
for (const outcome of await settled) {
  assert.equal(outcome.status, 'rejected');
  assert.equal(outcome.reason.body, 'session_closed');
}
await heard.ended;
assert.equal(heard.error, undefined);
assertKnown(heard.events);
assert.equal(heard.events.at(-1).type, 'session_closed');
await assertRejects(session.prompt(ask('1')), (error) => assert.equal(error.body.code, 'session_not_found'));
finish();
