"""CPython: layouts of its structures per version, code objects, line tables."""
