"""Load the BPF object, attach it, read its events; ``calls.py`` is the table of hooked calls."""
