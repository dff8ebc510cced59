"""Every route that there is: those of Quart, and those that plain ASGI callables answer in front of it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Any

import api

if TYPE_CHECKING:
    from api.context import GovernorApp


def routes_of(app: GovernorApp) -> set[tuple[str, str]]:
    """Method and path, a parameter being `<name>` or `<converter:name>`; HEAD and OPTIONS, which all have, left out."""
    rules = {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    in_front = {
        (method, re.sub(r"\{(\w+)\}", r"<\1>", path))
        for module in modules()
        for method, path in getattr(module, "ROUTES", ())
    }
    assert in_front, "a module that answers as a plain ASGI callable lists its routes as ROUTES"
    return rules | in_front


def modules() -> list[Any]:
    """Every module of `api`."""
    names = (found.name for found in pkgutil.walk_packages(api.__path__, "api."))
    return [importlib.import_module(name) for name in names if name not in {"api.asgi", "api.cli"}]
