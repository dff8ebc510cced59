"""A reload by `POST /admin/reload`: whole or not at all, and told exactly (A7, D8, D10)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from api.app import create_app
from api.ownership import IdentityOwnedError
from governor.config import Config, ModelConfig
from governor.errors import ConfigError
from tests.api.harness import Answer, Service, listening, make_config, service
from tests.api.operators import ADMIN, AS_ADMIN, ID, TOKENS, identity, look, quarantine_call, watching
from tests.api.test_admin_acts import act, audit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from trio.testing import MockClock

OTHER = ModelConfig(name="other", triton_model="m2", backend="b", slots=2, kind="generate")


class Source:
    """Where the configuration comes from, as a test wants it.

    Attributes:
        config: what is read next, or why nothing can be.
        owned: what was taken.
        refuses: another process has these.
        waits: while it is not set, reading takes longer.
    """

    def __init__(self) -> None:
        self.config: Config | ConfigError = make_config(tokens=TOKENS)
        self.owned: list[tuple[str, str]] = []
        self.refuses = False
        self.waits = trio.Event()
        self.waits.set()

    async def load(self) -> Config:
        await self.waits.wait()
        if isinstance(self.config, ConfigError):
            raise self.config
        return self.config

    def own(self, identities: Iterable[tuple[str, str]]) -> None:
        wanted = list(identities)
        if wanted and self.refuses:
            raise IdentityOwnedError(*wanted[0], "process 7")
        self.owned += wanted


@asynccontextmanager
async def reloadable(**options: Any) -> AsyncIterator[tuple[Service, Source]]:
    """A service whose configuration can be read again."""
    async with service(**{"tokens": TOKENS, **options}) as up:
        source = Source()
        up.app = create_app(up.governor, source)
        yield up, source


async def reload(up: Service, **body: object) -> Answer:
    return await act(up, "reload", **body)


async def test_slots_change_while_calls_run(autojump_clock: MockClock) -> None:
    async with reloadable() as (up, source), watching(up) as feed:
        session = await up.new_session()
        async with listening(up, session) as events:
            await up.prompt(session, "2")
            await trio.sleep(0.5)
            source.config = make_config(tokens=TOKENS, model={"slots": 3}, limits={"max_sessions": 9})
            answer = await reload(up, reason="more instances", operator="ada")
            assert answer.status == 200
            assert answer.json == {
                "dryRun": False,
                "changes": [
                    {"key": "limits.max_sessions", "before": 800, "after": 9},
                    {"key": "models.chat.slots", "before": 1, "after": 3},
                ],
                "modelsAdded": [],
                "modelsRemoved": [],
                "leaving": [],
            }
            assert (await identity(up))["credits"] == {"slots": 3, "free": 2, "held": 1}
            await events.until("turn_complete")
        (entry,) = await audit(up)
        assert (entry["act"], entry["result"], entry["reason"], entry["operator"]) == (
            "reload", "done", "more instances", "ada"
        )  # fmt: skip
        assert entry["report"]["changes"] == answer.json["changes"]
        kinds: list[str] = []
        while "reloaded" not in kinds:
            kinds += [event["kind"] for event in (await feed.until("recent"))["events"]]


async def test_a_dry_run_tells_and_changes_nothing(autojump_clock: MockClock) -> None:
    async with reloadable() as (up, source):
        source.config = make_config(tokens=TOKENS, model={"slots": 3}, more_models=(OTHER,))
        answer = await reload(up, dryRun=True)
        assert answer.json["dryRun"] is True
        assert answer.json["modelsAdded"] == ["other"]
        assert source.owned == []
        assert (await look(up))["identitiesTotal"] == 1
        assert (await identity(up))["credits"]["slots"] == 1


async def test_a_configuration_that_cannot_work_changes_nothing_and_tells_every_mistake(
    autojump_clock: MockClock,
) -> None:
    async with reloadable() as (up, source):
        before = up.governor.config
        source.config = ConfigError(
            ["governor.toml:3: server.port: received 99999", "governor.toml:9: models.0.slots: missing"]
        )
        answer = await reload(up)
        assert (answer.status, answer.code) == (422, "config_invalid")
        assert answer.json["problems"] == source.config.problems
        assert up.governor.config is before
        (entry,) = await audit(up)
        assert (entry["result"], entry["code"]) == ("refused", "config_invalid")


async def test_what_cannot_change_live_refuses_the_whole(autojump_clock: MockClock) -> None:
    """Nothing of it is in force, not even what could be: the running configuration is one that stands in a file."""
    async with reloadable() as (up, source):
        source.config = make_config(
            tokens=TOKENS, server={"port": 1}, model={"slots": 7}, backend={"url": "http://x:1"}
        )
        answer = await reload(up)
        assert (answer.status, answer.code) == (409, "reload_needs_restart")
        assert answer.json["keys"] == ["server.port", "backends.b.url"]
        assert (await identity(up))["credits"]["slots"] == 1


async def test_an_identity_that_another_process_owns_changes_nothing(autojump_clock: MockClock) -> None:
    """D8: its lock is taken before anything changes."""
    async with reloadable() as (up, source):
        source.config = make_config(tokens=TOKENS, model={"slots": 7}, more_models=(OTHER,))
        source.refuses = True
        answer = await reload(up)
        assert (answer.status, answer.code) == (409, "identity_owned")
        assert (await look(up))["identitiesTotal"] == 1
        assert (await identity(up))["credits"]["slots"] == 1
        source.refuses = False
        assert (await reload(up)).status == 200
        assert source.owned == [("http://127.0.0.1:8000", "m2")]
        session = await up.new_session(modelServiceId="other")
        assert (await up.prompt(session, "0")).status == 202


async def test_a_removed_model_is_told_with_what_of_it_has_not_ended(autojump_clock: MockClock) -> None:
    async with reloadable() as (up, source):
        await quarantine_call(up)
        session = await up.new_session()
        source.config = make_config(tokens=TOKENS, model={"name": "new", "triton_model": "m3"})
        answer = await reload(up)
        assert (answer.json["modelsAdded"], answer.json["modelsRemoved"]) == (["new"], ["chat"])
        (left,) = answer.json["leaving"]
        assert (left["identity"], left["states"]["quarantined"], left["pendingPrompts"]) == (ID, 1, 0)
        shown = await identity(up)
        assert (shown["leaving"], shown["names"]) == (True, [])
        refused = await up.prompt(session, "0")
        assert (refused.status, refused.code, refused.json["models"]) == (404, "unknown_model", ["new"])
        assert (await act(up, f"identities/{ID}/claims/1/release", reason="gone for good")).status == 200
        await trio.sleep(1)
        assert (await up.ask("GET", f"/admin/identities/{ID}", headers=AS_ADMIN)).code == "unknown_identity"


async def test_tokens_and_limits_of_requests_follow(autojump_clock: MockClock) -> None:
    """A rotated token is in force with the answer to the reload, for callers and for operators."""
    async with reloadable() as (up, source):
        new_admin, api = "admin-number-two-2", "callers-0123456789"
        source.config = make_config(
            tokens={"admin": new_admin, "api": api},
            limits={"max_body_bytes": 1000, "max_prompt_bytes": 500, "reads_per_minute": 1},
        )
        answer = await reload(up)
        assert [change["key"] for change in answer.json["changes"]] == [
            "limits.max_body_bytes", "limits.max_prompt_bytes", "limits.reads_per_minute", "tokens.api", "tokens.admin"
        ]  # fmt: skip
        assert ADMIN not in answer.body.decode()
        assert new_admin not in answer.body.decode()
        assert (await up.ask("GET", "/admin/identities", headers=AS_ADMIN)).status == 401
        as_admin = {"Authorization": f"Bearer {new_admin}"}
        assert (await up.ask("GET", "/admin/identities", headers=as_admin)).status == 200
        assert (await up.ask("GET", "/capabilities")).status == 401
        as_caller = {"Authorization": f"Bearer {api}"}
        assert (await up.ask("POST", "/session", data=b"x" * 1001, headers=as_caller)).status == 413
        assert (await up.ask("GET", "/capabilities", headers=as_caller)).status == 200
        assert (await up.ask("GET", "/capabilities", headers=as_caller)).status == 429
        source.config = make_config(tokens={"api": api})
        assert (await up.ask("POST", "/admin/reload", body={}, headers=as_admin)).status == 200
        assert (await up.ask("GET", "/admin/identities", headers=as_caller)).code == "not_found"
        for _ in range(3):
            assert (await up.ask("GET", "/capabilities", headers=as_caller)).status == 200


async def test_one_reload_at_a_time(autojump_clock: MockClock) -> None:
    async with reloadable() as (up, source), trio.open_nursery() as nursery:
        source.waits = trio.Event()
        answers: list[Answer] = []

        async def first() -> None:
            answers.append(await reload(up))

        nursery.start_soon(first)
        await trio.sleep(0.1)
        assert (await reload(up)).code == "operation_in_progress"
        source.waits.set()
        await trio.sleep(0.1)
        assert [answer.status for answer in answers] == [200]
        assert (await reload(up)).status == 200


async def test_a_stop_that_begins_while_the_file_is_read_goes_before(autojump_clock: MockClock) -> None:
    async with reloadable() as (up, source), trio.open_nursery() as nursery:
        source.waits = trio.Event()
        answers: list[Answer] = []

        async def first() -> None:
            answers.append(await reload(up))

        nursery.start_soon(first)
        await trio.sleep(0.1)
        up.governor.drain()
        source.waits.set()
        await trio.sleep(0.1)
        assert [answer.code for answer in answers] == ["daemon_draining"]


async def test_without_a_file_there_is_nothing_to_read_again(autojump_clock: MockClock) -> None:
    async with service(tokens=TOKENS) as up:
        answer = await reload(up)
        assert (answer.status, answer.code) == (409, "reload_not_possible")


@pytest.mark.parametrize("body", [{"dryRun": 1}, {"dryrun": True}, {"reason": ""}])
async def test_a_reload_that_is_asked_for_wrongly_does_nothing(
    body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with reloadable() as (up, source):
        source.config = make_config(tokens=TOKENS, model={"slots": 3})
        assert (await reload(up, **body)).status == 400
        assert (await identity(up))["credits"]["slots"] == 1
