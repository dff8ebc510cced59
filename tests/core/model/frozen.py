"""Freezing and restoring: states as tuples, equal when nothing that can still happen tells them apart.

- Only the order of the clock's times matters to the ledger here (the settle time is one tick), so a time is frozen
  as its place among those that it can still be compared with.
- Numbers that only grow (the epoch's, the answers') are frozen as what they are compared with.
- Calls are alike, so they are frozen in an order of their own; `freeze` tells which was which.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from governor.core.claims import Claim
from governor.core.epoch import Epoch
from governor.core.evidence import Ticket
from governor.core.witness import Witness
from tests.core.model.backend import COUNTED, DIED, DROPPED, NEVER, NEW, Call
from tests.core.model.judge import Sample
from tests.core.model.world import MOMENT, TICK, Left, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.core.epoch import Unsettled
    from governor.core.ledger import Ledger
    from tests.core.model.world import World

Frozen = tuple[Any, ...]

_FIELDS = [field.name for field in dataclasses.fields(Claim)]
assert _FIELDS[:2] == ["id", "opened_at_s"], "neither matters to the ledger"
_values = attrgetter(*_FIELDS[2:])
_DELIVERED = _FIELDS.index("delivered_at_s") - 2

_left_values = attrgetter(*(field.name for field in dataclasses.fields(Left)))
_call_values = attrgetter(*(field.name for field in dataclasses.fields(Call)))

_FINAL = frozenset({COUNTED, NEVER, DIED, DROPPED})
_DONE = (NEVER, "", "", 0, 0, 0)
"""A call that matters no more, whatever became of it."""
_STALE = "stale"
"""A reading that will be ignored, whatever it shows."""
_NO_SAMPLE = Sample(0, frozenset(), None, 0, 0)


def freeze(world: World) -> tuple[Frozen, list[int]]:
    """The whole world as a tuple, and the calls' indices in the order in which the tuple has them."""
    ledger, backend, left = world.ledger, world.backend, world.left
    readers = [
        reader if reader is None or reader.ticket.after == ledger._readings else _STALE for reader in world.readers
    ]
    place = _places(world, readers)
    calls: list[tuple[Frozen, Frozen | None]] = []
    for index, call in enumerate(backend.calls, 1):
        if call.stage == NEW:
            break
        claim = ledger.claims.get(index)
        if claim is None:
            calls.append((_DONE if call.stage in _FINAL else _call_values(call), None))
            continue
        values = _values(claim)
        delivered_at_s = values[_DELIVERED]
        if delivered_at_s is not None:
            values = (*values[:_DELIVERED], place(delivered_at_s), *values[_DELIVERED + 1 :])
        calls.append((_call_values(call), values))
    hashes = [hash(pair) for pair in calls]
    order = sorted(range(len(calls)), key=hashes.__getitem__)
    frozen = (
        tuple([calls[index] for index in order]),
        _freeze_ledger(ledger, world.now),
        tuple(backend.counts.items()),
        (
            backend.series if world.bounds.metrics else 0,
            backend.process,
            backend.life,
            backend.warms_up,
            backend.loading,
        ),
        _left_values(left),
        tuple(
            [
                (
                    place(reader.ticket.begun_at_s),
                    _since(ledger._unsettled, reader.ticket),
                    reader.stats,
                    reader.series,
                )
                if isinstance(reader, Reader)
                else reader
                for reader in readers
            ]
        ),
        (place(world.now), world.last, world.tainted),
    )
    return frozen, order


def _places(world: World, readers: Sequence[Reader | str | None]) -> Callable[[float], float]:
    """Where a time stands among those that it can still be compared with.

    Those are the moments at which readings under way were asked for, and now: whether something was delivered before
    them, and whether in an earlier tick.
    """
    moments = sorted({world.now, *(reader.ticket.begun_at_s for reader in readers if isinstance(reader, Reader))})
    if not world.bounds.moments:
        return lambda at_s: TICK * (bisect_right(moments, at_s) - 1)
    delivered = {claim.delivered_at_s for claim in world.ledger.claims.values() if claim.delivered_at_s is not None}
    places: dict[float, float] = {}
    place, before = float(-TICK), -TICK
    for at_s in sorted({*moments, *delivered}):
        following = next((moment for moment in moments if moment >= at_s), None)
        if at_s in moments or (following is not None and int(following) == int(at_s)):
            place = place + MOMENT if int(at_s) == before else int(place) + TICK
            before = int(at_s)
        places[at_s] = place
    return places.__getitem__


def restore(world: World, frozen: Frozen) -> None:
    """Makes `world` what was frozen."""
    calls, rest, counts, numbers, left, readers, (world.now, world.last, world.tainted) = frozen
    backend, ledger = world.backend, world.ledger
    ledger.claims.clear()
    for index, (call, values) in enumerate(calls):
        backend.calls[index] = Call(*call)
        if values is not None:
            ledger.claims[index + 1] = Claim(index + 1, 0, *values)
    for index in range(len(calls), len(backend.calls)):
        backend.calls[index] = Call()
    _restore_ledger(ledger, rest, opened=len(calls), now_s=world.now)
    backend.counts = dict(counts)
    backend.series, backend.process, backend.life, backend.warms_up, backend.loading = numbers
    world.left = Left(*left)
    world.readers = [_restore_reader(reader) for reader in readers]
    for reader in world.readers:
        for boot in () if reader is None else reader.ticket.settled:
            ledger._unsettled._let_go.setdefault(boot, 0)


def _restore_reader(frozen: Frozen | str | None) -> Reader | None:
    if frozen is None:
        return None
    if isinstance(frozen, str):
        return Reader(Ticket(-1, 0, {}), _NO_SAMPLE, 0)
    begun_at_s, since, stats, series = frozen
    return Reader(Ticket(0, begun_at_s, {boot: -most for boot, most in since}), stats, series)


def _freeze_ledger(ledger: Ledger, now_s: float) -> Frozen:
    """A ledger without its claims and without what only people read (its totals)."""
    epoch, unsettled = ledger._epoch, ledger._unsettled
    return (
        (ledger.contested, ledger._rule, ledger._provable, ledger._warms_up),
        (
            unsettled.doubtful,
            _by_boot(unsettled, now_s),
        ),
        (epoch.boot, epoch.versions, epoch.marks, epoch.elsewhere),
        (epoch.model.bound, epoch.model.high) if epoch.model else None,
        (epoch.process.bound, epoch.process.high) if epoch.process else None,
    )


def _since(unsettled: Unsettled, ticket: Ticket) -> Frozen:
    """What the ticket's reading may not show, by the process that it ended in."""
    missing = [(boot, most - ticket.settled.get(boot, 0)) for boot, most in unsettled._let_go.items()]
    return tuple(sorted([entry for entry in missing if entry[1]], key=str))


def _by_boot(unsettled: Unsettled, now_s: float) -> Frozen:
    """What has not settled, by the process that it ended in."""
    recent = [(boot, most) for at, most, boot in unsettled._recent if at > now_s - unsettled.settle_s]
    if not recent:
        return ()
    return tuple(sorted([(boot, sum([m for b, m in recent if b == boot])) for boot in {b for b, _ in recent}], key=str))


def _restore_ledger(ledger: Ledger, frozen: Frozen, *, opened: int, now_s: float) -> None:
    of_rule, of_unsettled, of_epoch, model, process = frozen
    ledger.contested, ledger._rule, ledger._provable, ledger._warms_up = of_rule
    unsettled = ledger._unsettled
    unsettled.doubtful, recent = of_unsettled
    # A ticket is frozen as what it lacks, pending included: counted from here on, everything let go of is nothing.
    unsettled._let_go = dict.fromkeys([boot for boot, _ in recent], 0)
    unsettled._recent.clear()
    unsettled._recent.extend([(now_s, most, boot) for boot, most in recent])
    ledger._readings = 0
    boot, versions, marks, elsewhere = of_epoch
    ledger._epoch = Epoch(
        0, boot, versions, marks, Witness(*model) if model else None, Witness(*process) if process else None, elsewhere
    )
    ledger._ids = count(opened + 1)
