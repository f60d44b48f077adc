"""What is sent to Pyroscope's two APIs: one request, ready but for its time."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from gpumemprof.export.pyroscope.timeless import Timeless

PUSH_PATH = "/push.v1.PusherService/Push"
INGEST_PATH = "/ingest"


class Request(NamedTuple):
    """One POST. ``target``: path and query, below the base URL."""

    target: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class PprofPush:
    """One service's series, with all sample types, but for its time."""

    labels: Mapping[str, str]
    profile: Timeless

    @property
    def size(self) -> int:
        """Bytes that the server counts against the tenant's rate."""
        return self.profile.size + sum(len(k) + len(v) for k, v in self.labels.items())

    @property
    def stored(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.profile.head)

    def request(self, time_ns: int) -> Request:
        """The request for a profile of this time."""
        pairs = [{"name": name, "value": value} for name, value in sorted(self.labels.items())]
        raw = base64.b64encode(self.profile.stamped(time_ns)).decode("ascii")
        document = {"series": [{"labels": pairs, "samples": [{"rawProfile": raw}]}]}
        return Request(PUSH_PATH, "application/json", json.dumps(document).encode())


@dataclass(frozen=True, slots=True)
class FoldedPush:
    """One sample type of one series as folded stacks, but for its time."""

    name: str
    text: bytes

    @property
    def size(self) -> int:
        """Bytes that the server counts against the tenant's rate, about."""
        return len(self.name) + len(self.text)

    @property
    def stored(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.text)

    def request(self, time_ns: int) -> Request:
        """The request for a profile of this time, which is told in nanoseconds."""
        query = {
            "name": self.name,
            "from": time_ns,
            "until": time_ns,
            "format": "folded",
            "spyName": "gpumemprof",
        }
        return Request(f"{INGEST_PATH}?{urlencode(query)}", "text/plain", self.text)
