"""From raw captured stacks to frames: unwinding, CPython code objects, symbols, merging."""
