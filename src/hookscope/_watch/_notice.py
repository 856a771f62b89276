"""Warnings that point at the user's line and can never stop the user's program."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from types import FrameType

import torch

from .._core._stderr import heard

_OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
log = logging.getLogger("hookscope")


def outside() -> FrameType:
    """The innermost frame outside torch and hookscope."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


def warn(message: str, category: type[Warning]) -> None:
    """Give a warning that names the user's line; under `-W error` it goes to the log instead."""
    if not heard():
        return
    frame = outside()
    try:
        warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno)
    except Warning:
        log.warning(message)
