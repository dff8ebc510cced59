"""`/admin`: what operators see and do, behind a token of their own (A7). `docs/admin.md` has the shapes.

`views` makes the JSON, `decode` reads what operators send, `stream` is the live feed, `routes` puts them together.
"""
