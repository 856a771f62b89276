"""What would mix two extractions, or harm what is not ours, is refused in a clear sentence."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._features import _npy_store, _repeats, _shard_store
from hookscope._lab._extract._fingerprint import Marks, model_digest

from ._streaming import convnet, files, images, loader, stopped


@pytest.fixture(autouse=True)
def _every_batch_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_npy_store.NpyStore, "full", lambda *_: True)
    monkeypatch.setattr(_shard_store, "SHARD_BYTES", 5000)


def trained(model: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        model[3].weight[0, 0] += 1e-7
    return model


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("what", "match"),
    [
        ({"model": trained(convnet())}, r"model was 'Sequential \w+' and is 'Sequential \w+'"),
        ({"model": convnet().train()}, "mode was 'eval' and is 'training'"),
        ({"select": "3"}, r"selection was \['0', '3'\] and is '3'"),
        ({"dtype": torch.float16}, "dtype was None and is 'torch.float16'"),
        ({"pool": "mean"}, "pool was None and is 'mean'"),
        ({"to": {"storage": "parquet"}}, "storage was 'npy' and is 'parquet'"),
        ({"forward": lambda net, batch: net(batch[0])}, r"forward was None and is '<lambda> at test_stream_refused\.py:\d+'"),
    ],
)
def test_another_model_or_selection_is_refused_and_named(tmp_path: Path, what: dict[str, Any], match: str, complete: bool) -> None:
    to = hs.Store(tmp_path / "f")
    if complete:
        hs.extract(convnet(), loader(), ["0", "3"], to=to)
    else:
        stopped(to)
    before = files(tmp_path / "f")
    asked = {"model": convnet(), "select": ["0", "3"], **what, "to": hs.Store(tmp_path / "f", **what.get("to", {}))}
    with pytest.raises(hs.FeaturesError, match=rf"holds features of another extraction: {match}.* Pass overwrite=True to replace them"):
        hs.extract(asked.pop("model"), loader(), asked.pop("select"), **asked)
    assert files(tmp_path / "f") == before


def test_the_digest_of_a_model_sees_every_value_and_no_wrapper() -> None:
    model = convnet()
    digest = model_digest(model)
    assert model_digest(nn.DataParallel(convnet())) == digest
    for parameter in model.parameters():
        flat = parameter.detach().view(-1)
        for place in {0, len(flat) // 2, len(flat) - 1}:
            before = float(flat[place])
            flat[place] = torch.nextafter(flat[place], torch.tensor(9.0))
            assert model_digest(model) != digest
            flat[place] = before
    assert model_digest(model) == digest
    assert model_digest(nn.LazyLinear(3)) != digest
    assert model_digest(nn.Linear(2, 2, device="meta")) != digest


def test_autocast_is_part_of_what_was_extracted(tmp_path: Path) -> None:
    stopped(hs.Store(tmp_path / "f"))
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(hs.FeaturesError, match=r"autocast was None and is 'cpu torch\.bfloat16'"),
    ):
        hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f")


def test_a_loader_that_does_not_repeat_itself_is_refused(tmp_path: Path) -> None:
    stopped(hs.Store(tmp_path / "f"))
    x = images()
    label = torch.arange(22) % 5
    swapped = [(x[i : i + 5], label[i : i + 5]) for i in (0, 10, 5, 15, 20)]
    relabelled = [(x[i : i + 5], label[i : i + 5] + (i == 5)) for i in range(0, 22, 5)]
    wrong: dict[str, Any] = {
        "its first batch is not the one that was stored": loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
        "its first batch is not the one that was stored. Give": loader(batch_size=4),
        "its first 2 batches are not those that were stored": swapped,
        "its first 2 batches are not those that were stored. Give": relabelled,
        "it gave 2 batches, and 3 are stored": [*loader()][:2],
    }
    before = files(tmp_path / "f")
    for match, batches in wrong.items():
        with pytest.raises(hs.FeaturesError, match=f"the loader does not repeat the one whose features are in .*/f: {match}"):
            hs.extract(convnet(), batches, ["0", "3"], to=tmp_path / "f")
    assert files(tmp_path / "f") == before
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f")
    with pytest.raises(hs.FeaturesError, match="it has 2 batches, and 5 are stored"):
        hs.extract(convnet(), loader(10), ["0", "3"], to=tmp_path / "f")
    with pytest.raises(hs.FeaturesError, match="its first batch is not"):
        hs.extract(convnet(), swapped[1:] + swapped[:1], ["0", "3"], to=tmp_path / "f")


class Plain:
    """A batch of a library of its own, with something that differs each time."""

    def __init__(self, x: torch.Tensor) -> None:
        self.parts = {"x": x}
        self.made = object()


@pytest.mark.parametrize(
    "form", [lambda x: UserDict(x=x), Plain, lambda x: [{"deep": (x,)}], lambda x: x.numpy(), lambda x: str(x.tolist())]
)
def test_batches_of_any_form_are_told_apart(form: Any) -> None:
    x = images(3)
    marks = [Marks().add(form(one)) for one in (x, x.clone(), x + 1e-3, x[:2], x.double())]
    assert marks[0] == marks[1]
    assert len({*marks[:1], *marks[2:4]}) == 3
    first, second = Marks(), Marks()
    for number in (0, 1):
        first.add(form(x[number]))
        second.add(form(x[1 - number]))
    first.add(form(x[2]))  # what came before is not forgotten
    second.add(form(x[2]))
    assert first.mark != second.mark


def test_overwrite_replaces_and_touches_nothing_of_others(tmp_path: Path) -> None:
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f")
    (tmp_path / "f" / "notes.txt").write_text("mine")
    features = hs.extract(convnet(), loader(10), "3", to=hs.Store(tmp_path / "f", overwrite=True, storage="parquet"))
    assert features.samples == 10
    assert sorted(files(tmp_path / "f")) == ["3/000000.parquet", "features.json", "ids.npy", "notes.txt"]
    with pytest.raises(hs.UsageError, match="overwrite=True and resume=False contradict each other"):
        hs.extract(convnet(), loader(10), "3", to=hs.Store(tmp_path / "f", overwrite=True, resume=False))


def test_resume_false_refuses_what_is_there(tmp_path: Path) -> None:
    stopped(hs.Store(tmp_path / "f"))
    with pytest.raises(hs.FeaturesError, match="already holds an unfinished extraction: leave out resume=False to go on with it"):
        hs.extract(convnet(), loader(), ["0", "3"], to=hs.Store(tmp_path / "f", resume=False))
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f")
    with pytest.raises(hs.FeaturesError, match="already holds 22 samples"):
        hs.extract(convnet(), loader(), ["0", "3"], to=hs.Store(tmp_path / "f", resume=False))


def test_places_that_cannot_be_written_to_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "3.npy").write_text("mine")
    wrong = {
        tmp_path / "file": "a file of that name is in the way: choose another directory",
        tmp_path / "file" / "below": "Not a directory",
        tmp_path / "full": r"it holds 3\.npy, but no features\.json: choose an empty or new directory such as .*/full/features",
    }
    for path, match in wrong.items():
        with pytest.raises(hs.FeaturesError, match=rf"cannot write features to .*: {match}"):
            hs.extract(convnet(), loader(), "3", to=path)
    assert (tmp_path / "full" / "3.npy").read_text() == "mine"


def test_places_that_hold_no_whole_features_are_told(tmp_path: Path) -> None:
    for path, match in {
        tmp_path / "none": "there are no features at .*/none: there is no such directory",
        Path(__file__): "it is a file",
        tmp_path: r"it has no features\.json",
    }.items():
        with pytest.raises(hs.FeaturesError, match=match):
            hs.Features(path)
    hs.extract(convnet(), loader(), "3", to=tmp_path / "f")
    manifest = tmp_path / "f" / "features.json"
    text = manifest.read_text()
    for broken, match in {
        text[:100]: r"features\.json is damaged or was not written by hookscope",
        "[]": "is damaged or was not written by hookscope",
        text.replace('"format": 1', '"format": 9'): "is written in format 9; this hookscope .* reads formats up to 1",
    }.items():
        manifest.write_text(broken)
        for ask in (lambda: hs.Features(tmp_path / "f"), lambda: hs.extract(convnet(), loader(), "3", to=tmp_path / "f")):
            with pytest.raises(hs.FeaturesError, match=match):
                ask()
    manifest.write_text(text)
    with (tmp_path / "f" / "3.npy").open("r+b") as file:
        file.truncate(300)
    with pytest.raises(hs.FeaturesError, match=r"3\.npy is cut short: it has 300 bytes of 696; extract again with overwrite=True"):
        _ = hs.Features(tmp_path / "f")["3"][0]
    (tmp_path / "f" / "3.npy").unlink()
    with pytest.raises(hs.FeaturesError, match=r"cannot read .*3\.npy: No such file or directory"):
        _ = hs.Features(tmp_path / "f")["3"][0]


@pytest.mark.parametrize("storage", ["npy", "safetensors"])
def test_ids_of_a_function_that_come_twice_are_refused_soon_or_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Any
) -> None:
    """Sample 21 has the id of sample 2: seen at once where both are among the last ids, else before the extraction is called complete."""
    numbers = iter([torch.arange(5 * i, min(5 * i + 5, 22)) % 19 for i in range(5)])
    to = hs.Store(tmp_path / "soon", ids=lambda _: next(numbers), storage=storage)
    with pytest.raises(hs.UsageError, match="ids name 0 more than once, samples 0 and 19: give each sample an id of its own"):
        hs.extract(convnet(), loader(), "0", to=to)
    monkeypatch.setattr(_repeats, "RECENT", 2)
    names = iter([[f"image {n % 19}" for n in range(5 * i, min(5 * i + 5, 22))] for i in range(5)])
    to = hs.Store(tmp_path / "late", ids=lambda _: next(names), storage=storage)
    with pytest.raises(hs.UsageError, match=r"ids name 'image \d' more than once, samples \d+ and \d+"):
        hs.extract(convnet(), loader(), "0", to=to)
    with pytest.raises(hs.FeaturesError, match="incomplete"):
        hs.Features(tmp_path / "late")


def test_a_repeat_across_a_resume_is_found(tmp_path: Path) -> None:
    batches = [{"x": x, "name": [f"{(5 * i + j) % 21}" for j in range(len(x))]} for i, x in enumerate(images().split(5))]
    to = hs.Store(tmp_path, ids="name")
    net = convnet()
    with pytest.raises(RuntimeError, match="stopped"):
        hs.extract(net, _then_stop(batches[:3]), "0", to=to, forward=_on_x)
    with pytest.raises(hs.UsageError, match="ids name '0' more than once, samples 0 and 21"):
        hs.extract(net, batches, "0", to=to, forward=_on_x)


def _on_x(model: nn.Module, batch: dict[str, Any]) -> Any:
    return model(batch["x"])


def _then_stop(batches: list[Any]) -> Any:
    yield from batches
    raise RuntimeError("stopped")
