"""Whose code a frame is: what the flame graph's colours tell apart."""

from __future__ import annotations

import re

from gpumemprof.report.functions import is_cuda
from gpumemprof.stack.frames import Frame, FrameKind

ORIGINS = ("python", "native", "cuda", "nccl", "note")
"""Python, other native code, NVIDIA's CUDA libraries, NCCL, and what is not known."""

_NCCL = re.compile(r"(?:^|/)libnccl[^/]*\.so[^/]*$")
_NCCL_CALL = re.compile(r"^p?nccl[A-Z]\w*$")
_CUDA = re.compile(
    r"(?:^|/)lib(?:cuda|cudart|cublas|cublasLt|cudnn\w*|cufft|cufftw|cufile|cupti|curand|cusolver"
    r"|cusolverMg|cusparse|cusparseLt|nvJitLink|nvrtc|nvjpeg|nvshmem\w*)(?:-[^/]*)?\.so[^/]*$"
)


def origin(frame: Frame) -> int:
    """The place of a frame's origin in ``ORIGINS``."""
    if frame.kind is FrameKind.PYTHON:
        return 0
    if frame.kind is FrameKind.NOTE:
        return 4
    if _NCCL.search(frame.module) or _NCCL_CALL.match(frame.name):
        return 3
    return 2 if is_cuda(frame) or _CUDA.search(frame.module) else 1
