"""Processes of this machine as /proc and ELF files show them."""
