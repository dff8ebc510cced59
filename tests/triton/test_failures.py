"""Every exception of the layers below has its place in the table, and every place its error."""

from __future__ import annotations

import httptools
import pytest
import trio

from governor.errors import BackendProtocolError, BackendUnavailableError, ConnectionLostError
from governor.triton import parser, transport
from governor.triton.failures import FAULTS, Fault, failure, fault_of, of_question, reason_of


def _exceptions_of(module: object) -> list[type[Exception]]:
    found = (getattr(module, name) for name in dir(module))
    return [each for each in found if isinstance(each, type) and issubclass(each, Exception)]


def _instance(kind: type[Exception]) -> Exception:
    """Some constructors want requests and responses that do not matter here."""
    return kind.__new__(kind)


@pytest.mark.parametrize("module", [httptools, parser, transport], ids=["httptools", "parser", "transport"])
def test_no_exception_of_the_layers_below_is_unmapped(module: object) -> None:
    kinds = _exceptions_of(module)
    assert kinds
    assert [kind for kind in kinds if fault_of(_instance(kind)) is None] == []


def test_of_a_question_nothing_is_said_to_execute() -> None:
    """A health check that broke is no call: "may still execute" would send an operator after one."""
    error = failure(trio.BrokenResourceError(), origin="http://b", delivered=True, ended=True)
    assert error is not None
    assert "may still execute" in error.message
    asked = of_question(f"it could not be asked: {error.message}")
    assert asked.startswith("it could not be asked: The connection to http://b broke before the answer was complete")
    assert "execute" not in asked


def test_what_is_no_failure_of_an_exchange_stays_what_it_is() -> None:
    for error in (ZeroDivisionError(), KeyError("x"), trio.BusyResourceError(), KeyboardInterrupt()):
        assert failure(error, origin="o", delivered=True, ended=False) is None


def test_no_entry_of_the_table_is_hidden_by_an_earlier_one() -> None:
    for index, (kind, _) in enumerate(FAULTS):
        assert not any(issubclass(kind, earlier) for earlier, _ in FAULTS[:index]), kind


@pytest.mark.parametrize(
    ("fault", "delivered", "ended", "expected"),
    [
        (Fault.WIRE, False, False, BackendUnavailableError),
        (Fault.WIRE, False, True, BackendUnavailableError),
        (Fault.WIRE, True, False, ConnectionLostError),
        (Fault.WIRE, True, True, ConnectionLostError),
        (Fault.PROTOCOL, False, False, BackendUnavailableError),
        (Fault.PROTOCOL, False, True, BackendUnavailableError),
        (Fault.PROTOCOL, True, False, BackendProtocolError),
        (Fault.PROTOCOL, True, True, ConnectionLostError),
    ],
)
def test_what_a_failure_means_depends_on_what_was_delivered(
    fault: Fault, expected: type[Exception], *, delivered: bool, ended: bool
) -> None:
    """E3: an error that says "safe to send again" is raised for what was not delivered, and for nothing else."""
    for kind, its_fault in FAULTS:
        if its_fault is fault:
            error = failure(_instance(kind), origin="http://b", delivered=delivered, ended=ended)
            assert type(error) is expected, kind
            assert "http://b" in str(error)


def test_reason_is_the_systems_own_sentence() -> None:
    refused = OSError("all attempts failed")
    refused.__cause__ = ExceptionGroup(
        "", [ConnectionRefusedError(111, "Connection refused"), OSError(101, "Network is unreachable")] * 2
    )
    assert reason_of(refused) == "Connection refused; Network is unreachable"
    wrapped = OSError("attempt failed")
    wrapped.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert reason_of(wrapped) == "Connection refused"
    broken = trio.BrokenResourceError()
    broken.__cause__ = ValueError("bad record")
    assert reason_of(broken) == "bad record"
    assert reason_of(httptools.HttpParserError()) == "HttpParserError"
