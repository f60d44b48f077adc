"""Counting rules: live allocations, totals, peaks and failures, as a pure value driven by events."""
