"""gpumemprof: which functions of an unmodified program hold GPU memory, by eBPF.

The stages, in the order data flows; imports point only to earlier ones::

    probe -> process -> stack -> ledger -> profile -> export, report, plan -> cli
"""

__version__ = "0.1.0"
