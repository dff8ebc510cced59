"""What start-up made is not walked for cycles again."""

from __future__ import annotations

import gc

from api.heap import settle_heap


def test_the_collector_is_spared_what_start_up_made() -> None:
    made: list[list[int]] = [[] for _ in range(1000)]
    try:
        settle_heap()
        assert gc.get_freeze_count() > len(made)
        assert not any(each is made for each in gc.get_objects())
    finally:
        gc.unfreeze()
