"""Profiles of containers, pushed to Pyroscope."""

from gpumemprof.export.pyroscope.pusher import Pusher, PusherStatus
from gpumemprof.export.pyroscope.settings import PyroscopeSettings

__all__ = ["Pusher", "PusherStatus", "PyroscopeSettings"]
