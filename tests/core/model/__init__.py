"""An exhaustive check of the ledger against a small world that knows the backend's truth.

    backend.py  the truth: processes, loads, what executes, what is counted and when
    world.py    the truth, a ledger that sees only its shadow, and every event that can happen
    frozen.py   states as tuples, so that equal ones are found and any can be gone back to
    explore.py  breadth-first search, shortest counterexamples, liveness
    worlds.py   the worlds that are searched, and the numbers of states they have
"""
