"""`boot_identity = "auto"` keeps to one kind of name (E8): two kinds for one process would look like two processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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
            self._log_frequency = json.loads(request.body)["log_frequency"]
        return Fetched(200, json.dumps({"trace_level": ["OFF"], "log_frequency": self._log_frequency}).encode())


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
