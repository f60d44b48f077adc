"""The profile value: build, merge, prune; pprof, folded and speedscope codecs."""
