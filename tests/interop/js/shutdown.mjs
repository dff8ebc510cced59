// The daemon shuts down while one prompt runs and others wait.

import assert from 'node:assert/strict';
import { ask, assertKnown, assertNumberedWithoutGaps, assertRejects, finish, kind, listen, makeClient, openSession, options, sdk } from './lib.mjs';

const { client } = makeClient();
const session = await openSession(client, 'slow');
const heard = listen(session);
const other = await openSession(client, 'slow'); // waits without a subscription
const silent = other.prompt(ask('30 seconds'));
const pending = [1, 2, 3].map((number) => session.prompt(ask(`30 seconds ${number}`)));
const settled = Promise.allSettled([silent, ...pending]);
await heard.until(() => heard.events.filter((event) => event.type === 'pending_prompt_added').length === 2);
await heard.until((event) => kind(event) === 'user_message_chunk');

process.kill(options.pid, 'SIGTERM');
for (const outcome of await settled) {
  assert.equal(outcome.status, 'rejected');
  assert.ok(outcome.reason instanceof sdk.DaemonHttpError, String(outcome.reason));
  assert.equal(outcome.reason.body, 'daemon_shutdown');
}
await heard.ended;
assert.equal(heard.error, undefined, 'the stream came to its proper end');
assertKnown(heard.events);
assertNumberedWithoutGaps(heard.events);
const last = heard.events.at(-1);
assert.equal(last.type, 'session_died');
assert.equal(last.data.reason, 'daemon_shutdown');
assert.equal(heard.events.filter((event) => event.type === 'turn_error').length, 3);
finish();
