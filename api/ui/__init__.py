"""`/ui`: a page that shows an operator what `/admin` tells, and lets them act (A7). `docs/ui.md` describes it.

`static` is what the browser gets, as it is: there is no build step. `routes` serves it. The page holds nothing secret;
what it shows it asks of `/admin`, with the token that the operator enters.
"""
