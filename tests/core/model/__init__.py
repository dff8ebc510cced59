"""An exhaustive check of the ledger against a small world that knows the backend's truth.

- backend.py: the truth: processes, loads, what executes, what is counted and when
- bounds.py: how large a world is
- world.py: the truth, a ledger that sees only its shadow, and every event that can happen
- enabled.py: which events can happen in a state
- judge.py: what the ledger must never do, and the named exceptions
- frozen.py: states as tuples, so that equal ones are found and any can be gone back to
- explore.py: breadth-first search and shortest counterexamples
- liveness.py: what stays held once faults stop
- small.py, large.py: the worlds that are searched, with what must come of them and how many states they have
"""
