"""Freezing and restoring: states as tuples, equal when nothing that can still happen tells them apart.

- Only the order of the clock's times matters to the ledger here (the settle time is one tick), so a time is frozen
  as its rank.
- Numbers that only grow (the epoch's, the answers') are frozen as what they are compared with.
- Calls are alike, so they are frozen in an order of their own; `freeze` tells which was which.
"""

from __future__ import annotations

import dataclasses
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from governor.core.claims import Claim
from governor.core.epoch import Epoch
from governor.core.evidence import Ticket
from governor.core.witness import Witness
from tests.core.model.backend import COUNTED, NEVER, NEW, Call
from tests.core.model.world import Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.core.ledger import Ledger
    from tests.core.model.world import World

Frozen = tuple[Any, ...]

_FIELDS = [field.name for field in dataclasses.fields(Claim)]
assert _FIELDS[:2] == ["id", "opened_at_s"], "neither matters to the ledger"
_values = attrgetter(*_FIELDS[2:])
_DELIVERED = _FIELDS.index("delivered_at_s") - 2

_FINAL = frozenset({COUNTED, NEVER})
_DONE = (NEVER, "", "", 0, 0, 0)
"""A call that matters no more, whatever became of it."""


def freeze(world: World) -> tuple[Frozen, list[int]]:
    """The whole world as a tuple, and the calls' indices in the order in which the tuple has them."""
    ledger = world.ledger
    times = {world.now}
    times.update(at for at, _ in ledger._unsettled._recent)
    times.update(claim.delivered_at_s for claim in ledger.claims.values() if claim.delivered_at_s is not None)
    times.update(reader.ticket.begun_at_s for reader in world.readers if reader is not None)
    rank: dict[float | None, int | None] = {at: place for place, at in enumerate(sorted(times))}
    rank[None] = None
    backend, left = world.backend, world.left
    calls = []
    for index, call in enumerate(backend.calls, 1):
        if call.stage == NEW:
            break
        claim = ledger.claims.get(index)
        if claim is None and call.stage in _FINAL:
            calls.append((_DONE, None))
            continue
        values = claim and _values(claim)
        if values:
            values = (*values[:_DELIVERED], rank[values[_DELIVERED]], *values[_DELIVERED + 1 :])
        calls.append(((call.stage, call.link, call.load, call.due, call.least, call.most), values))
    hashes = [hash(pair) for pair in calls]
    order = sorted(range(len(calls)), key=hashes.__getitem__)
    frozen = (
        tuple([calls[index] for index in order]),
        _freeze_ledger(ledger, rank),
        tuple(backend.counts.items()),
        (backend.series if world.bounds.metrics else 0, backend.process, backend.life),
        (left.restarts, left.reloads, left.version_changes, left.foreign, left.releases),
        tuple(
            None
            if reader is None
            else (_freeze_ticket(ledger, reader.ticket, rank), reader.stats, reader.series)
            for reader in world.readers
        ),
        (rank[world.now], world.last, world.tainted),
    )
    return frozen, order


def restore(world: World, frozen: Frozen) -> None:
    """Makes `world` what was frozen."""
    calls, rest, counts, numbers, left, readers, (world.now, world.last, world.tainted) = frozen
    backend, ledger, budget = world.backend, world.ledger, world.left
    ledger.claims.clear()
    for index, (call, values) in enumerate(calls):
        backend.calls[index] = Call(*call)
        if values is not None:
            ledger.claims[index + 1] = Claim(index + 1, 0, *values)
    for index in range(len(calls), len(backend.calls)):
        backend.calls[index] = Call()
    _restore_ledger(ledger, rest, opened=len(calls))
    backend.counts = dict(counts)
    backend.series, backend.process, backend.life = numbers
    budget.restarts, budget.reloads, budget.version_changes, budget.foreign, budget.releases = left
    world.readers = [
        None if reader is None else Reader(_restore_ticket(reader[0]), reader[1], reader[2]) for reader in readers
    ]


def _freeze_ledger(ledger: Ledger, rank: Mapping[float | None, int | None]) -> Frozen:
    """A ledger without its claims and without what only people read (its totals)."""
    epoch, unsettled = ledger._epoch, ledger._unsettled
    return (
        (ledger.contested, ledger._rule, ledger._provable),
        (
            unsettled.doubtful,
            unsettled._pending,
            unsettled._undated,
            tuple([(rank[at], most) for at, most in unsettled._recent]),
        ),
        (epoch.boot, epoch.versions, epoch.marks),
        (epoch.model.bound, epoch.model.high) if epoch.model else None,
        (epoch.process.bound, epoch.process.high) if epoch.process else None,
    )


def _restore_ledger(ledger: Ledger, frozen: Frozen, *, opened: int) -> None:
    (ledger.contested, ledger._rule, ledger._provable), of_unsettled, of_epoch, model, process = frozen
    unsettled = ledger._unsettled
    unsettled.doubtful, unsettled._pending, unsettled._undated, recent = of_unsettled
    unsettled._let_go = 0
    unsettled._recent.clear()
    unsettled._recent.extend(recent)
    ledger._readings = 0
    ledger._epoch = Epoch(0, *of_epoch, Witness(*model) if model else None, Witness(*process) if process else None)
    ledger._ids = count(opened + 1)


def _freeze_ticket(ledger: Ledger, ticket: Ticket, rank: Mapping[float | None, int | None]) -> Frozen:
    """Whether a ticket still stands; when it was taken; what was let go of since."""
    return (ticket.after == ledger._readings, rank[ticket.begun_at_s], ledger._unsettled.since(ticket))


def _restore_ticket(frozen: Frozen) -> Ticket:
    stands, begun_at_s, since = frozen
    return Ticket(0 if stands else -1, begun_at_s, -since)
