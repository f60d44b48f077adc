"""Profiles of containers, pushed to Pyroscope."""

from gpumemprof.export.pyroscope.pusher import Pusher
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.export.pyroscope.status import PusherStatus

__all__ = ["Pusher", "PusherStatus", "PyroscopeSettings"]
