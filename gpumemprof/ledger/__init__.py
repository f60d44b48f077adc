"""Counting rules: live allocations, totals, peaks and failures; a pure value driven by events."""
