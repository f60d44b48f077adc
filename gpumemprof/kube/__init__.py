"""Kubernetes as the agent sees it: pods of this node, their workloads, the per-namespace switch."""
