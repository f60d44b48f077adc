"""Where an agent's results go: Pyroscope, Prometheus, a local store and its pages."""
