"""The client against a real governor, against a server that does everything wrong, and piece by piece."""
