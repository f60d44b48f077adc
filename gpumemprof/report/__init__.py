"""Renderings of a profile: terminal tables, JSON."""
