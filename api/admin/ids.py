"""Identities in URLs. Pure.

An id is `BACKEND:MODEL`, both by their names in the configuration and on the server. Of the model's name every
character outside `A-Z a-z 0-9 . _ -` is written as `~XX` for each of its UTF-8 bytes. So an id needs no encoding in a
path, and an identity keeps it for as long as its two names.
"""

from __future__ import annotations

from difflib import get_close_matches
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final

from governor.errors import UnknownIdentityError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.identity import IdentityKey

_PLAIN: Final = frozenset((ascii_letters + digits + "._-").encode())


def identity_id(key: IdentityKey) -> str:
    """The id of an identity."""
    return f"{key.backend}:{_escaped(key.model)}"


def id_of_name(name: str) -> str:
    """The id of the identity that writes itself `backend/model`."""
    backend, _, model = name.partition("/")
    return f"{backend}:{_escaped(model)}"


def find_key(keys: Iterable[IdentityKey], wanted: str) -> IdentityKey:
    """The identity of an id.

    Raises:
        UnknownIdentityError: there is none.
    """
    by_id = {identity_id(key): key for key in keys}
    if wanted in by_id:
        return by_id[wanted]
    as_logged, alone = id_of_name(wanted), [known for known in by_id if known.partition(":")[2] == wanted]
    meant = [as_logged] if as_logged in by_id else alone or get_close_matches(wanted, by_id, 1)
    raise UnknownIdentityError(wanted, meant[0] if meant else None)


def _escaped(model: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in model.encode("utf-8", "surrogatepass"))
