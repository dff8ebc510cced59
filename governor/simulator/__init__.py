"""A simulated Triton."""
