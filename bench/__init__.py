"""Measurements, always as ratios of things run side by side: absolute numbers of a shared machine say little."""
