"""Binds hooks, stats, clock, rules and sinks for one run."""

from ._discover import Discovery, discover
from ._monitor import GradientMonitor
from ._settings import Settings
from ._watch import watch

__all__ = ["Discovery", "GradientMonitor", "Settings", "discover", "watch"]
