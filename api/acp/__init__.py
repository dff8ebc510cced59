"""ACP, the Agent Client Protocol: JSON-RPC 2.0 over `POST`, `GET` and `DELETE /acp` (A4).

A client opens a *connection* (`initialize`), sends requests by `POST`, and reads their responses on streams: the
connection's own stream, and one stream for each session that the connection owns.

    routes      HTTP: one message in, 202 out; streams; the end of a connection
    methods     what each method does, through the same governor and sessions as the REST routes
    connection  what a connection owns, how long it lives, what becomes of it at its end
    streams     the readers' ends: responses and events in one order, none lost with a connection that breaks
    calls       one request from its acceptance until its response was taken
    messages    JSON-RPC as bytes (pure)
    errors      what goes wrong, as JSON-RPC errors (pure)
"""
