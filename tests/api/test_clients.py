"""Client ids of a session: minted, known again, counted, forgotten (protocol 1.4)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.clients import CLIENTS_MAX, Clients
from governor.errors import InvalidRequestError


def test_a_new_caller_gets_a_new_id_and_a_known_one_keeps_its_own() -> None:
    clients = Clients("s")
    mine = clients.register()
    assert clients.register(mine) == mine
    assert clients.register("client_unknown") not in {mine, "client_unknown"}
    assert len(clients) == 2


def test_an_id_is_known_until_every_registration_was_taken_back() -> None:
    clients, abandoned = Clients("s"), []
    mine = clients.register()
    clients.register(mine)
    clients.unregister(mine)
    clients.require(mine)
    abandoned.append(clients.abandoned)
    clients.unregister(mine)
    with pytest.raises(InvalidRequestError) as refused:
        clients.require(mine)
    assert refused.value.body()["code"] == "invalid_client_id"
    abandoned.append(clients.abandoned)
    clients.register()
    abandoned.append(clients.abandoned)
    assert abandoned == [False, True, False]


def test_a_session_that_nobody_ever_registered_for_is_not_abandoned() -> None:
    clients = Clients("s")
    clients.unregister(None)
    clients.unregister("nobody")
    clients.require(None)
    assert not clients.abandoned


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=100))
def test_the_count_of_each_id_is_what_came_minus_what_went(deeds: list[tuple[bool, int]]) -> None:
    clients = Clients("s")
    known: list[str] = []
    counts: Counter[str] = Counter()
    for comes, number in deeds:
        client_id = known[number] if number < len(known) else None
        if comes:
            got = clients.register(client_id)
            assert (got == client_id) == (client_id is not None and counts[client_id] > 0)
            counts[got] += 1
            if got not in known:
                known.append(got)
        elif client_id is not None:
            clients.unregister(client_id)
            counts[client_id] = max(0, counts[client_id] - 1)
        present = {client_id for client_id, count in counts.items() if count}
        assert {client_id for client_id in known if client_id in clients} == present
        assert len(clients) == len(present)


def test_who_was_longest_not_registered_is_forgotten_first() -> None:
    clients = Clients("s")
    first, second = clients.register(), clients.register()
    for _ in range(CLIENTS_MAX - 2):
        clients.register()
    clients.register(first)
    clients.register()
    assert first in clients
    assert second not in clients
    assert len(clients) == CLIENTS_MAX
