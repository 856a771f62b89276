"""The kernel on a 64-bit ARM processor, cross-compiled and emulated, against the definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hookscope._core._exponents import Exponents
from hookscope._stats._plain import FLOATS

from .conftest import expected

KERNEL = Path(__file__).parents[2] / "src" / "hookscope" / "_stats" / "_native.c"
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
WORDS = {4: np.int32, 8: np.int64, 2: np.int16}
LENGTHS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100, 2047, 2048, 2049, 4097, 30_001)
PROGRAM = """
#define Py_LIMITED_API 0x030A0000
#include "KERNEL"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    find_levels();
    int dtype;
    long long n;
    while (fread(&dtype, 4, 1, stdin) == 1 && fread(&n, 8, 1, stdin) == 1) {
        char *x = malloc(n * ITEMSIZE[dtype] + 1);
        if (fread(x, ITEMSIZE[dtype], n, stdin) != (size_t)n) return 1;
        for (level = levels; level < levels + level_count; level++) {
            Exponents e;
            Totals t = EMPTY_TOTALS;
            memset(&e, 0, sizeof e);
            read_exponents(level->readers[dtype], dtype, x, n, &t, &e);
            printf("%s %.17g %.17g %.17g %.17g %.17g %.17g %.17g", level->name, t.nan, t.inf, t.zeros, t.sum, t.sumsq, t.min, t.max);
            for (int i = 0; i < SLOTS; i++) printf(" %lld", (long long)e.slots[i]);
            puts("");
        }
        free(x);
    }
    return 0;
}
"""


def cases() -> Iterator[tuple[int, torch.Tensor]]:
    """Any bit pattern, ordinary numbers, and ordinary numbers with zeros, a NaN, an Inf and a subnormal among them."""
    rng = np.random.default_rng(0)
    for code, dtype in enumerate(FLOATS):
        word = WORDS[dtype.itemsize]
        for n in LENGTHS:
            patterns = torch.from_numpy(rng.integers(np.iinfo(word).min, np.iinfo(word).max, n, word, endpoint=True)).view(dtype)
            yield code, patterns.clamp(-1e150, 1e150) if dtype is torch.float64 else patterns
            ordinary = torch.from_numpy(rng.standard_normal(n)).to(dtype)
            yield code, ordinary
            odd = ordinary.relu()
            for value in (math.nan, -math.inf, -0.0, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps) if n else ():
                odd[rng.integers(n)] = value
            yield code, odd


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER or not EMULATOR, reason="needs gcc-aarch64-linux-gnu and qemu-user")
def test_every_number_of_the_kernel_is_right_on_arm(tmp_path):
    source, binary = tmp_path / "kernel.c", tmp_path / "kernel"
    source.write_text(PROGRAM.replace("KERNEL", str(KERNEL)))
    # Python's own functions are declared and never called.
    options = ["-static", "-O3", "-std=c99", f"-I{sysconfig.get_paths()['include']}", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run([COMPILER, *options, str(source), "-o", str(binary), "-lm"], check=True, capture_output=True)
    given = list(cases())
    levels = ("neon", "generic")
    stream = b"".join(struct.pack("<iq", code, len(x)) + _bytes(x) for code, x in given)
    lines = subprocess.run([EMULATOR, str(binary)], input=stream, check=True, capture_output=True).stdout.decode().splitlines()
    for ((code, x), level), line in zip(itertools.product(given, levels), lines, strict=True):
        values, (name, *numbers) = x.double().tolist(), line.split()
        nan, inf, zeros, total, squares, low, high = map(float, numbers[:7])
        want, size = expected(values), math.fsum(abs(v) for v in values if math.isfinite(v))
        assert (name, nan, inf, zeros, low, high) == (level, *want[1:4], *want[6:]), FLOATS[code]
        np.testing.assert_allclose([total], [want.sum], rtol=0, atol=1e-12 * size)
        np.testing.assert_allclose([squares], [want.sumsq], rtol=1e-12, atol=1e-300)
        assert [int(n) for n in numbers[7:]] == Exponents.of_magnitudes(x.double().numpy()).counts.tolist()


def _bytes(x: torch.Tensor) -> bytes:
    return x.view({4: torch.int32, 8: torch.int64, 2: torch.int16}[x.element_size()]).numpy().tobytes() if len(x) else b""
