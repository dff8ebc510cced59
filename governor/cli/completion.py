"""What a shell may offer where one types: names of commands and flags, and what the server knows (argcomplete)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

_PATIENCE_S: Final = 1.0
"""Who presses TAB waits no longer than this for the server."""


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the shell and exits, if it is the shell that asks."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # noqa: PLC0415  # the commands themselves do not need it

        argcomplete.autocomplete(parser)


def print_code(options: argparse.Namespace) -> int:
    """`governor completion SHELL`."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415  # see complete

    sys.stdout.write(shellcode(["governor"], shell=options.shell))
    return 0


def offer(argument: argparse.Action, ask: Callable[[argparse.Namespace], Iterable[str]]) -> None:
    """What the server knows may stand for this argument."""

    def completer(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
        from governor.client import DaemonError  # noqa: PLC0415  # only a shell that asks needs it

        try:
            return ask(parsed_args)
        except (DaemonError, ValueError):
            return ()  # a server that cannot be asked offers nothing; a message would end up in what is being typed

    argument.completer = completer  # type: ignore[attr-defined]  # argcomplete's way


def models(options: argparse.Namespace) -> Iterable[str]:
    """The models that there are."""
    from governor.client import SyncDaemonClient  # noqa: PLC0415  # see offer

    with SyncDaemonClient(options.url, token=options.token, **_impatient()) as client:
        return client.capabilities().models


def sessions(options: argparse.Namespace) -> Iterable[str]:
    """The sessions that there are."""
    from governor.client import SyncDaemonClient  # noqa: PLC0415  # see offer

    with SyncDaemonClient(options.url, token=options.token, **_impatient()) as client:
        return [session.session_id for session in client.list_sessions(size=100).sessions]


def identities(options: argparse.Namespace) -> Iterable[str]:
    """The identities that there are. Colons separate words in bash, so what is offered is quoted by argcomplete."""
    from governor.client import SyncAdminClient  # noqa: PLC0415  # see offer

    with SyncAdminClient(options.url, token=options.admin_token, **_impatient()) as admin:
        return [identity.id for identity in admin.state().identities]


def _impatient() -> _Impatient:
    from governor.client import RetryPolicy  # noqa: PLC0415  # see offer

    return {"request_timeout_s": _PATIENCE_S, "retry": RetryPolicy(attempts=1)}


if TYPE_CHECKING:
    from typing import TypedDict

    from governor.client import RetryPolicy

    class _Impatient(TypedDict):
        request_timeout_s: float
        retry: RetryPolicy
