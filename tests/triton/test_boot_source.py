"""`boot_identity = "auto"` keeps to one kind of name (E8): two kinds for one process would look like two processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio
import trio.testing

from governor.triton.boot import BootStamp
from governor.triton.lane import Fetched

if TYPE_CHECKING:
    from governor.triton.wire import WireRequest

UUID = "0c1f9a56-3f0e-4a53-8f3b-0d5b3f1f0a11"


class Process:
    """A Triton process that was started with `--id`, and a model that may be unloaded."""

    def __init__(self, *, loaded: bool) -> None:
        self.loaded = loaded
        self._log_frequency = "0"

    async def fetch(self, request: WireRequest, *, max_bytes: int) -> Fetched:
        assert max_bytes > 0
        if request.path == "/v2":
            return Fetched(200, json.dumps({"name": UUID}).encode())
        if not self.loaded:
            return Fetched(400, b'{"error":"Request for unknown model : m"}')
        if request.method == "POST":
            self._log_frequency = json.loads(bytes(request.body))["log_frequency"]
        return Fetched(200, json.dumps({"trace_level": ["OFF"], "log_frequency": self._log_frequency}).encode())


class Late(Process):
    """The first write is given up by who sent it and arrives only after the next connection has written too."""

    def __init__(self) -> None:
        super().__init__(loaded=True)
        self.late: WireRequest | None = None

    async def fetch(self, request: WireRequest, *, max_bytes: int) -> Fetched:
        if request.method == "POST" and self.late is None:
            self.late = request
            await trio.sleep_forever()
        return await super().fetch(request, max_bytes=max_bytes)


async def test_a_write_that_was_given_up_changes_nothing_when_it_arrives_after_all() -> None:
    """E8: else one process had two names, and a claim stamped with the one would end at a reading with the other."""
    process, stamp = Late(), BootStamp("m", "trace")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stamp, process)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    name = await stamp(process)
    assert process.late is not None
    await Process.fetch(process, process.late, max_bytes=1)
    assert await stamp(process) == name is not None


async def test_the_next_process_gets_another_number() -> None:
    first, second, stamp = Process(loaded=True), Process(loaded=True), BootStamp("m", "trace")
    assert await stamp(first) != await stamp(second)


async def test_an_id_never_stands_in_for_the_nonce_of_a_model_that_is_unloaded() -> None:
    """A claim stamped in that moment would end at the next reading of the same process, while it executes."""
    process, stamp = Process(loaded=True), BootStamp("m", "auto")
    nonce = await stamp(process)
    assert nonce is not None
    assert nonce.startswith("trace:")
    process.loaded = False
    assert await stamp(process) is None
    process.loaded = True
    assert await stamp(process) == nonce


async def test_a_nonce_never_stands_in_for_the_id_that_was_found_first() -> None:
    process, stamp = Process(loaded=False), BootStamp("m", "auto")
    assert await stamp(process) == f"id:{UUID}"
    process.loaded = True
    assert await stamp(process) in {None, f"id:{UUID}"}
