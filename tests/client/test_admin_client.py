"""The operator's client, in all three ways."""

from __future__ import annotations

from typing import Any

import pytest

from governor.client import AdminEvents, AdminState, DaemonHttpError, DaemonStreamError, DaemonUsageError
from tests.client.conftest import ADMIN_TOKEN
from tests.client.fake import Wire, fake_server, in_turn, refuse, tell
from tests.client.flavours import Flavour, each_flavour


@each_flavour
def test_the_state_the_acts_and_what_happens(flavour: Flavour, governor_url: str) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.admin(url, token=ADMIN_TOKEN) as admin:
            state = await admin.state(size=1)
            assert [identity.id for identity in state.identities] == ["triton:sentiment"]
            assert state.next_after == "triton:sentiment"
            rest = await admin.state(after=state.next_after)
            assert [identity.id for identity in rest.identities] == ["triton:slow", "triton:storyteller"]
            one = await admin.identity("triton:slow", claims=10)
            assert (one.slots, one.names, one.usable, one.claims_total) == (1, ("slow",), True, len(one.claims))
            async with admin.live() as live:
                told: list[Any] = [await anext(live)]
                report = await admin.restart("triton:slow", "a test", expected_epochs={"triton:slow": one.epoch})
                (result,) = report.results
                assert (result.ok, result.epoch > one.epoch, result.forgotten) == (True, True, ())
                async for item in live:
                    told.append(item)
                    if isinstance(item, AdminEvents) and item.events[-1].get("kind") == "forced_restart":
                        break
            assert any(isinstance(item, AdminState) for item in told)
            with pytest.raises(DaemonHttpError) as caught:
                await admin.restart("triton:slow", "a test", expected_epochs={"triton:slow": one.epoch})
            assert caught.value.code == "epoch_changed"
            with pytest.raises(DaemonHttpError) as caught:
                await admin.release("triton:slow", 999, "a test")
            assert caught.value.code == "unknown_claim"
            assert (await admin.audit(size=1)).entries[0]["result"] == "refused"
        async with flavour.admin(url, token="of somebody else".replace(" ", "-")) as stranger:
            with pytest.raises(DaemonHttpError, match="Unauthorized"):
                await stranger.state()

    flavour.run(test, governor_url)


@each_flavour
def test_the_live_state_goes_on_where_its_connection_broke(flavour: Flavour) -> None:
    async def test(flavour: Flavour, url: str) -> None:
        async with flavour.admin(url, token="t") as admin:
            async with admin.live() as live:
                seen = [await anext(live) for _ in range(3)]
                with pytest.raises(DaemonStreamError, match="again and again"):
                    await anext(live)
            with pytest.raises(DaemonUsageError, match="inside of a block"):
                await anext(live)
        assert [type(item) for item in seen] == [AdminState, AdminEvents, AdminState]
        cursors = [request.headers.get("last-event-id") for request in server.requests]
        assert cursors[:2] == [None, "7"]

    state = b'event: state\ndata: {"v": 1, "identities": []}\n\n'
    recent = b'id: 7\nevent: recent\ndata: {"events": [{"id": 7, "kind": "stopping"}]}\n\n'
    script = in_turn(
        tell(b"data: no JSON\n\n", b"event: new\ndata: {}\n\n", state, recent, then=Wire.reset),
        tell(state, then=Wire.close),
        refuse(503, {"error": "x"}),
    )
    with fake_server(more=(("GET /admin/events", script),)) as server:
        flavour.run(test, server.url)
