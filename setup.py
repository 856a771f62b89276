"""What is written in C, built where there is a compiler and left out where there is none; everything else is in pyproject.toml."""

import sys

from setuptools import Extension, setup

PYTHON_3_10 = "0x030A0000"  # the oldest Python we support; the limited API of it serves every later one


def kernel(name: str, folder: str = "_stats", standard: str = "c99") -> Extension:
    """With `gnu99` the compiler may join a product and a sum into one instruction, which rounds once."""
    return Extension(
        f"hookscope.{folder}.{name}",
        [f"src/hookscope/{folder}/{name}.c"],
        define_macros=[("Py_LIMITED_API", PYTHON_3_10)],
        extra_compile_args=["/O2"] if sys.platform == "win32" else ["-O3", f"-std={standard}"],
        py_limited_api=True,
        optional=True,  # a failed build is a warning: the package then does the same in Python, with torch operations
    )


setup(
    ext_modules=[
        kernel("_native"),
        kernel("_units_native"),
        kernel("_softmax_native", standard="gnu99"),
        kernel("_tape_native", "_origin"),
        kernel("_native", "_watch"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
