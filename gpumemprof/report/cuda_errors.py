"""Names of the CUDA errors that allocating calls return.

Source: CUresult of cuda.h and cudaError of driver_types.h (CUDA 13). The two share their numbers
where both have the error.
"""

from __future__ import annotations

_ERRORS: dict[int, tuple[str, str, str]] = {
    # number: (driver's name, runtime's name, meaning)
    1: ("CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "not initialized"),
    4: ("CUDA_ERROR_DEINITIALIZED", "cudaErrorCudartUnloading", "the driver is shutting down"),
    35: ("", "cudaErrorInsufficientDriver", "the driver is too old for the runtime, or missing"),
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "cudaErrorDevicesUnavailable",
        "the device is busy or unavailable",
    ),
    100: ("CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA device"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "cudaErrorDeviceUninitialized", "invalid context"),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "uncorrectable ECC error"),
    304: (
        "CUDA_ERROR_OPERATING_SYSTEM",
        "cudaErrorOperatingSystem",
        "operating system call failed",
    ),
    400: ("CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle", "invalid handle"),
    401: ("CUDA_ERROR_ILLEGAL_STATE", "cudaErrorIllegalState", "illegal state"),
    700: (
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "cudaErrorIllegalAddress",
        "an earlier kernel used an illegal address",
    ),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "an earlier kernel timed out"),
    709: (
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "cudaErrorContextIsDestroyed",
        "the context is destroyed",
    ),
    710: ("CUDA_ERROR_ASSERT", "cudaErrorAssert", "an earlier kernel hit an assertion"),
    712: (
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "cudaErrorHostMemoryAlreadyRegistered",
        "this host memory is registered already",
    ),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "an earlier kernel failed"),
    800: ("CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted", "not permitted"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "not supported"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady", "the system is not ready"),
    900: (
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "cudaErrorStreamCaptureUnsupported",
        "not allowed while a stream is captured",
    ),
    901: (
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "cudaErrorStreamCaptureInvalidated",
        "an earlier error ended the capture of the stream",
    ),
    999: ("CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error"),
}


def name(code: int, call: str) -> str:
    """The error's name as the library of ``call`` spells it, empty if not known."""
    driver, runtime, _ = _ERRORS.get(code, ("", "", ""))
    return runtime if call.startswith("cuda") else driver


def meaning(code: int) -> str:
    """What the error means in words, empty if not known."""
    return _ERRORS.get(code, ("", "", ""))[2]
