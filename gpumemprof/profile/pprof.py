"""A profile as gzipped pprof: what is stored, pushed and exchanged.

How the model stands in the format (field numbers: pprof.proto):

- Sample types are those of the model, in its order; ``inuse_space`` is what viewers show first;
  the period is one byte of space, since every allocation is recorded.
- A frame is a Location with one Line and no address. Frames that differ only in line share a
  Function, so viewers sum them by function. ``start_line`` is not known and stays 0.
- Which kind a frame is, is told by fields that other tools keep when they merge files:
  a native frame has a Mapping (one for each module; the file name is empty if the module is not
  known); a Python frame has none, and an empty ``system_name``; a note has none, and
  ``system_name`` is its name after ``note: ``.
- Only a native frame's ``system_name`` equals its name: those names Go's pprof takes for C++ and
  cuts what stands in angle brackets, which would leave nothing of Python's ``<module>``.
- Mappings say that they have functions, files and lines, so no viewer looks for symbols with
  addresses that are not there. The first is the main program's by convention, so stacks are
  numbered from the root.
- Everything else of the model is in comments (pprof_comments.py).
"""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.message import DecodeError

from gpumemprof.errors import GpumemprofError, UsageError
from gpumemprof.profile import gzipped, pprof_pb2
from gpumemprof.profile.model import TYPE_NAMES, Profile
from gpumemprof.profile.pprof_read import profile_of
from gpumemprof.profile.pprof_write import message_of

MAX_UNPACKED = 512 << 20
"""Bytes of a profile without gzip that ``decode`` accepts by default."""


def encode(profile: Profile) -> bytes:
    """``profile`` as gzipped pprof. Equal profiles give equal bytes.

    What UTF-8 cannot hold (lone surrogates) is written as ``?``; all else is read back by
    ``decode`` as it was. Raises GpumemprofError if a number needs more than 64 bits."""
    try:
        message = message_of(profile)
    except (ValueError, OverflowError) as error:
        raise GpumemprofError("a number is too large to be stored in a profile") from error
    return gzipped.compress(message.SerializeToString(deterministic=True))


def decode(
    data: bytes, *, required: Collection[str] = TYPE_NAMES, max_unpacked: int = MAX_UNPACKED
) -> Profile:
    """The profile in ``data``, gzipped or not, written by ``encode`` or by another program.

    ``required``: names of sample types that must be there; types of the model that are neither
    required nor there are read as 0. ``max_unpacked``: bytes. Labels come sorted; of other
    programs' profiles, numeric labels become text and frames without a mapping are Python's if
    their file is. Raises UsageError with a sentence that says what is wrong: damaged or cut data,
    more than ``max_unpacked`` bytes, indexes of things that are not there, missing sample types.
    """
    if not data:
        raise UsageError("the profile is empty")
    if gzipped.is_gzip(data):
        data = gzipped.decompress(data, max_unpacked)
    elif len(data) > max_unpacked:
        raise UsageError(f"the profile has more than {max_unpacked:,} bytes, the limit")
    message = pprof_pb2.Profile()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UsageError("this is not a pprof profile, or it is damaged") from error
    return profile_of(message, required)
