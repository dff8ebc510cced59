"""The decision core: evidence, credits, admission, event order. Pure.

No I/O, no clock, no trio (T4). Every method is synchronous and returns at once, so between two checkpoints of
its driver nothing can interleave and nothing needs a lock. Time is an argument, in seconds of any monotonic clock.

    claims.py    the life of one claim, as a table
    counting.py  what a finished call may add to a counter, and what one reading shows
    witness.py   one counter: how high it can get by our calls
    ledger.py    an identity's claims and epochs; what a reading proves
    credits.py   who gets the next slot credit
    prompts.py   a session's pending prompts
    events.py    a session's numbered events and their bounded subscribers
"""
