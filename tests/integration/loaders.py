"""The loaders that tests run on."""

from __future__ import annotations

import pytest

from gpumemprof.errors import ProbeError
from gpumemprof.probe.bcc import find_module
from gpumemprof.probe.kernel_side import LoaderChoice

try:
    find_module()
    BCC_MISSING = ""
except ProbeError as error:
    BCC_MISSING = str(error)

needs_bcc = pytest.mark.skipif(bool(BCC_MISSING), reason=BCC_MISSING)

LOADERS = pytest.mark.parametrize(
    "loader",
    [LoaderChoice.LIBBPF, pytest.param(LoaderChoice.BCC, marks=needs_bcc)],
    ids=lambda loader: loader.value,
)
