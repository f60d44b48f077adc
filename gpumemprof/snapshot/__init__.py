"""PyTorch's memory snapshots: read safely, explained, converted to a profile."""
