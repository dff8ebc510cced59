"""The world of the model check with bounds that no search can exhaust, walked at random by Hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from governor.core.counting import ENSEMBLE
from governor.core.evidence import OnFall
from tests.core.model.bounds import Bounds
from tests.core.model.cases import EITHER, ENSEMBLE_OUTCOMES, ERRORS, KNOWN
from tests.core.model.liveness import held
from tests.core.model.world import OF_A_CALL, Event, World

if TYPE_CHECKING:
    from collections.abc import Callable

READING = {"begin", "sample", "sample metrics", "apply"}

WIDE = Bounds(
    calls=8, outcomes=(*ERRORS, "rejected"), boots=EITHER, stamps=EITHER, restarts=3, reloads=3, version_changes=3,
    versions=("1", "2"), metrics=True, split=True, readers=3, slow_begin=True, slow_send=True, slow_entry=True,
    undelivered=True, delivery_lost=True, stale_lanes=True, callers_leave=True, moments=True, releases=2,
    honest_releases=True, recounts=1, on_fall=OnFall.HOLD,
)  # fmt: skip
"""Everything at once, on a backend that names its process now and then."""

ENSEMBLES = Bounds(
    calls=8, rule=ENSEMBLE, outcomes=(*ENSEMBLE_OUTCOMES, "ensemble failed, uncounted"), boots=KNOWN, stamps=KNOWN,
    restarts=3, readers=2, slow_begin=True, slow_send=True, undelivered=True, moments=True,
)  # fmt: skip
"""An ensemble behind connections that know their process."""


class Walk(RuleBasedStateMachine):
    """One walk; the world checks every rule after every event."""

    bounds = WIDE

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.bounds)

    def _events(self, wanted: Callable[[str], bool]) -> list[Event]:
        return [event for event in self.world.events() if wanted(event[0])]

    def _step(self, data: st.DataObject, wanted: Callable[[str], bool]) -> None:
        self.world.do(data.draw(st.sampled_from(self._events(wanted))))

    @precondition(lambda self: self._events(OF_A_CALL.__contains__))
    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        """Something happens to a call."""
        self._step(data, OF_A_CALL.__contains__)

    @precondition(lambda self: self._events(READING.__contains__))
    @rule(data=st.data())
    def reading(self, data: st.DataObject) -> None:
        """A reading goes one step further."""
        self._step(data, READING.__contains__)

    @rule(data=st.data())
    def backend(self, data: st.DataObject) -> None:
        """Something happens to the backend, or time passes."""
        self._step(data, lambda name: name not in OF_A_CALL and name not in READING)

    def teardown(self) -> None:
        """Nothing ended early; and then everything comes to its end without another fault."""
        assert not self.world.excuses
        target(float(len(self.world.seen)), label="situations seen")
        held(self.world)
        assert not self.world.excuses


class EnsembleWalk(Walk):
    """The same with an ensemble."""

    bounds = ENSEMBLES


@pytest.mark.parametrize("walk", [Walk, EnsembleWalk])
def test_no_walk_breaks_a_rule(walk: type[Walk]) -> None:
    run_state_machine_as_test(
        walk,
        settings=settings(
            max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("walk", [Walk, EnsembleWalk])
def test_no_long_walk_breaks_a_rule(walk: type[Walk]) -> None:
    run_state_machine_as_test(
        walk,
        settings=settings(
            max_examples=1000, stateful_step_count=120, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
