"""Everything hookscope raises or warns with.

HookscopeError
├── UsageError (ValueError)               an argument that cannot be right
│   ├── SelectionError (LookupError)      a selection that is malformed or matches nothing
│   └── AttachError                       a model, module or optimizer that cannot be watched
├── RunError (OSError)                    a run directory
│   ├── RunExistsError                    there is a run already, and neither overwrite nor resume was asked for
│   └── RunUnreadableError                no run there, or one this version cannot read
├── FeaturesError (OSError)               a directory of extracted features
└── FindingError                          a finding, raised because `on_finding="raise"` was asked for
    └── NonFiniteError                    a loss or gradient that is not finite, because of `on_nonfinite="raise"`

HookscopeWarning (UserWarning)            hookscope about itself: a part switched off, a site it cannot see
└── FindingWarning                        a finding, the moment it happens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._finding import Finding


class HookscopeError(Exception):
    """Root of every exception hookscope raises on purpose."""


class UsageError(HookscopeError, ValueError):
    """An argument that cannot be right; the text names its value and the valid choices."""


class SelectionError(UsageError, LookupError):
    """A selection that is malformed or matches nothing; the text names near misses."""


class AttachError(UsageError):
    """A model, module or optimizer that cannot be watched."""


class RunError(HookscopeError, OSError):
    """A run directory that cannot be written or read."""


class RunExistsError(RunError):
    """The directory already holds a run; pass `overwrite=True` or `resume=True`."""


class RunUnreadableError(RunError):
    """No run at that place, or one that this version cannot read."""


class FeaturesError(HookscopeError, OSError):
    """A directory of extracted features that cannot be written, gone on with, or read."""


class FindingError(HookscopeError):
    """Raised out of the training when `on_finding="raise"` and a finding of severity error appears.

    `findings` holds them, root cause first.
    """

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        super().__init__("\n".join(f.headline for f in findings))


class NonFiniteError(FindingError):
    """Raised before the optimizer's step when `on_nonfinite="raise"` and the loss or a gradient is not finite; the text has the verdict."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__(findings)
        if not findings:
            self.args = ("the loss or a gradient is not finite; no rule can tell where it began",)


class HookscopeWarning(UserWarning):
    """hookscope about itself: a part of it switched off, or something it cannot see."""


class FindingWarning(HookscopeWarning):
    """A finding about the watched training, given at the moment it happens."""
