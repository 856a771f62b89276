"""Binds hooks, stats, clock, rules and sinks for one run."""

from ._watch import watch

__all__ = ["watch"]
