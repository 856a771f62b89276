"""The rules: pure functions of a run that yield findings, and `diagnose`, which orders them. Imports no torch."""

from __future__ import annotations

from ._catalogue import RULES, Rule, rule_id
from ._diagnose import diagnose

__all__ = ["RULES", "Rule", "diagnose", "rule_id"]
