"""Triton's `/v2` beside inference: what is open to every caller, and what only an operator may do (A6)."""
