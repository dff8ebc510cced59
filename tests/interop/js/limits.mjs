// Five pending prompts; the sixth is refused by the client, and by the server where the client does not count.

import assert from 'node:assert/strict';
import { ask, assertRejects, finish, listen, makeClient, openSession, sdk } from './lib.mjs';

const { client, requests } = makeClient();
const careful = await openSession(client, 'slow');
const heard = listen(careful);
const pending = [1, 2, 3, 4, 5].map(() => careful.prompt(ask('0.2 seconds')));
const sent = () => requests.filter((request) => request.path.endsWith('/prompt')).length;
await heard.until(() => sent() === 5);
await assertRejects(careful.prompt(ask('0.2 seconds')), (error) => {
  assert.ok(error instanceof sdk.DaemonPendingPromptLimitError);
  assert.deepEqual([error.sessionId, error.limit, error.pendingCount], [careful.sessionId, 5, 5]);
});
assert.equal(sent(), 5, 'the sixth was not sent');
assert.equal((await Promise.all(pending)).length, 5);
await careful.prompt(ask('0.01 seconds'));

for (const off of [null, 0, Infinity]) {
  const unbounded = makeClient({ maxPendingPromptsPerSession: off });
  const session = await openSession(unbounded.client, 'slow');
  const accepted = [];
  for (let number = 0; number < 5; number++) accepted.push(await session.submitPrompt(ask('1 second')));
  const error = await assertRejects(session.prompt(ask('1 second')), () => {});
  assert.ok(error instanceof sdk.DaemonPendingPromptLimitError, String(error));
  assert.deepEqual([error.sessionId, error.limit, error.pendingCount], [session.sessionId, 5, 5]);
  assert.equal(unbounded.requests.at(-1).status, 503);
  await session.close();
}
finish({ admitted: 5 + 1 + 15, refused: 3 });
