"""The HTTP surface: routes, streams, the server and the command. It imports `governor`, never the reverse."""
