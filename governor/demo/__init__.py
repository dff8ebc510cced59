"""A demonstration: real Triton, real models on real text, and the governor in front."""
