"""What a reader should know about frameworks that take memory in large pieces."""

from __future__ import annotations

from collections.abc import Iterator

from gpumemprof.profile.model import Profile

_POOLS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("jaxlib/", "jax_plugins/", "xla_extension.so"),
        "JAX takes most of a GPU's memory in one piece when it starts and hands it out itself: "
        "that piece is what is shown. Set XLA_PYTHON_CLIENT_PREALLOCATE=false to see it taken "
        "as needed.",
    ),
)
"""(parts of module paths, sentence) for each framework."""


def hints(profile: Profile) -> Iterator[str]:
    """A sentence for each framework whose code is on a stack."""
    modules = {frame.module for sample in profile.samples for frame in sample.stack}
    for parts, sentence in _POOLS:
        if any(part in module for module in modules for part in parts):
            yield sentence
