"""Programs to try the profiler on. They import nothing of gpumemprof, as a user's program does."""
