"""What whoever typed a command can do about the error that it ended with."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from governor.client import DaemonConnectionError, DaemonHttpError, DaemonProtocolError, DaemonTurnError
from governor.client.admin import ADMIN_TOKEN_VARIABLE
from governor.client.http import TOKEN_VARIABLES

if TYPE_CHECKING:
    import argparse

    from governor.client import DaemonError

_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_NO_SUCH_ROUTE: Final = frozenset({_NOT_FOUND, 405, 501})


def advice(error: DaemonError, options: argparse.Namespace) -> str:
    """The advice, without a full stop; empty where the error itself says it all."""
    where = "--url or GOVERNOR_URL"
    if isinstance(error, DaemonConnectionError) and not error.delivered:
        return f"start the governor there, or correct {where}"
    if isinstance(error, DaemonProtocolError):
        return f"look whether {options.url} is a governor; {where} says where it is"
    if not isinstance(error, DaemonHttpError) or isinstance(error, DaemonTurnError):
        return ""
    operator = re.match(r"[A-Z]+ /admin\b", str(error)) is not None
    if error.status == _UNAUTHORIZED:
        return _about_token(options, operator=operator)
    if error.status in _NO_SUCH_ROUTE and error.code is None:
        return f"look whether {options.url} is a governor; {where} says where it is"
    if error.status == _NOT_FOUND and error.code == "not_found" and operator:
        return "set tokens.admin in the governor's configuration; without it there are no routes for operators"
    return ""


def _about_token(options: argparse.Namespace, *, operator: bool) -> str:
    variables = (ADMIN_TOKEN_VARIABLE,) if operator else TOKEN_VARIABLES
    key = "tokens.admin" if operator else "tokens.api"
    flag = options.admin_token if operator else options.token
    if flag or any(os.environ.get(name) for name in variables):
        return f"the token that was given is another; set {variables[0]} to the governor's {key}"
    return f"no token was given; set {variables[0]} to the governor's {key}"
