"""The whole product: a real Triton, a governor in its own process, and clients on sockets."""
