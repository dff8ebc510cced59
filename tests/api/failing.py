"""An application whose governor breaks down when told to, for a server in a process of its own."""

from __future__ import annotations

import os

import trio

from api import asgi
from governor.service import Governor


class FailingGovernor(Governor):
    """Breaks down as soon as the file named by `FAIL_WHEN` exists."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            task_status.started()
            path = trio.Path(os.environ["FAIL_WHEN"])
            while not await path.exists():
                await trio.sleep(0.02)
            raise RuntimeError("broken inside")


app = asgi.PlainApplication(asgi.config_from_environment, make_governor=FailingGovernor)
