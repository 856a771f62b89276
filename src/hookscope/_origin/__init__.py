"""From the symptom to the line: which operation made the first bad value, found by running again what has just run."""

from ._verdict import Operand, Verdict

__all__ = ["Operand", "Verdict"]
