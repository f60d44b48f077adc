"""The chart and the plain manifests, without a cluster."""
