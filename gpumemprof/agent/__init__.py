"""The node agent: which processes are recorded for whom, and what is published of them when."""
