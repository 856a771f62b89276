"""`extract(..., to=)`: what a bare loop would have computed lies on disk, in the order of the loader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hookscope as hs

from ._streaming import bare, convnet, files, hooks, images, loader


def same(feature: Any, tensor: torch.Tensor) -> bool:
    return torch.equal(feature.torch(), tensor)


def test_the_files_hold_what_a_bare_loop_computes(tmp_path: Path) -> None:
    model, batches = convnet(), loader()
    features = hs.extract(model, batches, ["0", "3"], to=tmp_path / "feats")
    right = bare(model, batches)
    assert list(features) == ["0", "3"]
    assert all(same(features[name], right[name]) for name in right)
    assert np.array_equal(np.load(tmp_path / "feats" / "0.npy", mmap_mode="r"), right["0"].numpy())
    assert features.ids.tolist() == [*range(22)]
    assert (features.samples, features.complete, hooks(model)) == (22, True, 0)


@pytest.mark.parametrize("storage", ["npy", "safetensors", "parquet"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_storage_gives_back_every_type(tmp_path: Path, storage: Any, dtype: torch.dtype) -> None:
    model = convnet()
    features = hs.extract(model, loader(), "3", to=hs.Store(tmp_path / "f", storage=storage), dtype=dtype)
    assert same(features["3"], bare(model, loader())["3"].to(dtype))


def test_pools_and_kinds_go_to_disk_as_they_come_in_memory(tmp_path: Path) -> None:
    model = convnet()
    features = hs.extract(model, loader(), ["0", "3:input"], to=tmp_path / "f", pool={"0": "mean"})
    assert same(features["0"], bare(model, loader())["0"].mean((2, 3)))
    assert same(features["3:input"], bare(model, loader())["0"].relu().flatten(1))


def test_every_call_of_a_reused_module_has_its_own_file(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.fc(x))  # type: ignore[no-any-return]

    model, x = Twice(), torch.randn(7, 3)
    features = hs.extract(model, DataLoader(x, batch_size=2), "fc", to=tmp_path / "f")  # type: ignore[arg-type]  # a tensor is a dataset
    with torch.no_grad():
        right = torch.cat([model.fc(model.fc(part)) for part in x.split(2)])
    assert list(features) == ["fc@0", "fc@1"]
    assert same(features["fc", 1], right)


class TwoInputs(nn.Module):
    """Two inputs, one of them by choice; `forward` takes no label."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Identity()

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.fc(a + scale * b)  # type: ignore[no-any-return]


def as_given(x: torch.Tensor) -> dict[str, tuple[nn.Module, Any, torch.Tensor]]:
    """Batches of every form, with what the layer returns for them."""
    label = torch.zeros(4)
    return {
        "tensor": (nn.Sequential(nn.Identity()), [x, x], torch.cat([x, x])),
        "a tensor and a label": (nn.Sequential(nn.Identity()), [(x, label)], x),
        "a list and a label": (nn.Sequential(nn.Identity()), [[x, label]], x),
        "two inputs and a label": (TwoInputs(), [(x, x, label)], 2 * x),
        "a dict with a label": (TwoInputs(), [{"a": x, "b": x, "label": label}], 2 * x),
        "one tensor": (nn.Sequential(nn.Identity()), x, x),
        "one dict": (TwoInputs(), {"a": x, "b": x}, 2 * x),
        "a generator": (nn.Sequential(nn.Identity()), (part for part in (x[:1], x[1:])), x),
        "wrapped": (nn.DataParallel(TwoInputs()), [(x, x, label)], 2 * x),
    }


@pytest.mark.parametrize("form", as_given(torch.ones(4, 2)))
def test_a_batch_reaches_the_model_without_its_labels(tmp_path: Path, form: str) -> None:
    model, batches, right = as_given(torch.randn(4, 2))[form]
    features = hs.extract(model, batches, nn.Identity, to=tmp_path / "f")
    assert same(next(iter(features.values())), right)


def test_in_memory_a_loader_is_taken_the_same_way() -> None:
    model = convnet()
    assert torch.equal(hs.extract(model, loader(), "3")["3"], bare(model, loader())["3"])


def test_a_function_passes_the_batch_as_it_likes(tmp_path: Path) -> None:
    model = convnet()
    swapped = [(label, x) for x, label in loader()]
    features = hs.extract(model, swapped, "3", to=tmp_path / "f", forward=lambda net, batch: net(batch[1]))
    assert same(features["3"], bare(model, loader())["3"])


def test_ids_come_from_a_list_an_entry_or_a_function(tmp_path: Path) -> None:
    x, names = torch.randn(6, 2), [f"{i}.png" for i in range(6)]
    model = nn.Sequential(nn.Identity())
    numbers = torch.tensor([10, 11, 12, 13, 0, 1])
    dicts = [{"input": x[part], "name": names[part], "number": numbers[part]} for part in (slice(4), slice(4, 6))]
    asked: dict[str, tuple[Any, list[Any]]] = {
        "list": (names, names),
        "name": ("name", names),
        "number": ("number", [10, 11, 12, 13, 0, 1]),
        "function": (lambda batch: [n.upper() for n in batch["name"]], [n.upper() for n in names]),
        "none": (None, [*range(6)]),
    }
    for form, (ids, right) in asked.items():
        assert hs.extract(model, dicts, "0", to=hs.Store(tmp_path / form, ids=ids)).ids.tolist() == right
    wrong: dict[str, Any] = {
        "there are 5 ids, and the loader gives a sample 5": names[:5],
        "'nam' is to be found in each batch, which has 'input', 'name', 'number'": "nam",
        r"there are ids of shape \(1,\) for a batch of 4 samples": lambda batch: ["a"],
        "1.5 is no id: give whole numbers or text": lambda batch: [1.5] * len(batch["name"]),
    }
    for number, (match, ids) in enumerate(wrong.items()):
        with pytest.raises(hs.UsageError, match=match):
            hs.extract(model, dicts, "0", to=hs.Store(tmp_path / f"wrong{number}", ids=ids))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        return self.head((h * attention_mask[..., None]).sum(1))  # type: ignore[no-any-return]


def sentences() -> list[dict[str, torch.Tensor]]:
    """Padded on either side, and to another length in each batch."""
    torch.manual_seed(0)
    masks = [torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]), torch.tensor([[1, 0], [1, 1], [0, 0]])]
    return [{"tokens": torch.randint(9, mask.shape), "attention_mask": mask} for mask in masks]


def test_sequences_are_stored_without_their_padding(tmp_path: Path) -> None:
    model, batches = Tokens(), sentences()
    features = hs.extract(model, batches, ["embed", "head"], to=hs.Store(tmp_path / "f", mask="attention_mask"))
    with torch.no_grad():
        right = [model.embed(t[m.bool()]) for batch in batches for t, m in zip(batch["tokens"], batch["attention_mask"], strict=True)]
    assert (features["embed"].shape, features["head"].shape) == ((5, None, 3), (5, 2))
    assert all(torch.equal(got, want) for got, want in zip(features["embed"].torch(), right, strict=True))
    assert np.load(tmp_path / "f" / "embed.npy").shape == (9, 3)
    assert np.load(tmp_path / "f" / "embed.offsets.npy").tolist() == [0, 3, 6, 7, 9, 9]
    with pytest.raises(hs.UsageError, match=r"the mask has shape \(2, 3\) and is for .* but there is only embed:output \(2, 4, 3\)"):
        hs.extract(model, batches, ["embed"], to=hs.Store(tmp_path / "g", mask=lambda batch: batch["attention_mask"][:, 1:]))


def test_without_a_mask_sequences_of_other_lengths_keep_theirs(tmp_path: Path) -> None:
    model, batches = Tokens(), sentences()
    features = hs.extract(model, batches, "embed", to=tmp_path / "f")
    with torch.no_grad():
        right = [model.embed(t) for batch in batches for t in batch["tokens"]]
    assert all(torch.equal(got, want) for got, want in zip(features["embed"].torch(), right, strict=True))


def test_what_has_no_samples_first_is_refused_with_the_way_out(tmp_path: Path) -> None:
    lstm, batches = nn.LSTM(2, 3), [(torch.ones(4), x := torch.randn(5, 4, 2))]
    with pytest.raises(hs.UsageError, match=r"\(root\):output\[0\] has shape \(5, 4, 3\) for a batch of 4 samples, and its first"):
        hs.extract(lstm, batches, "(root):output[0]", to=tmp_path / "a", forward=second)
    features = hs.extract(lstm, batches, "(root):output[0]", to=tmp_path / "b", forward=second, pool=lambda t: t.transpose(0, 1))
    with torch.no_grad():
        assert same(next(iter(features.values())), lstm(x)[0].transpose(0, 1))
    with pytest.raises(hs.UsageError, match="weight:param has no samples, so it is no feature of a dataset"):
        hs.extract(nn.Linear(2, 2), [torch.ones(1, 2)], "weight:param", to=tmp_path / "c")


def second(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> object:
    return model(batch[1])


def test_a_packed_sequence_counts_its_samples(tmp_path: Path) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(2, 3), nn.Identity()

        def forward(self, packed: PackedSequence) -> torch.Tensor:
            return self.out(self.lstm(packed)[1][0][-1])  # type: ignore[no-any-return]

    packed = pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    features = hs.extract(model := Last(), [packed], "out", to=tmp_path / "f")
    with torch.no_grad():
        assert same(features["out"], model(packed))


def test_wrong_loaders_are_told(tmp_path: Path) -> None:
    model = convnet()

    class Nothing(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([])

    wrong: list[tuple[Any, str]] = [
        (DataLoader(Nothing(), batch_size=2), "the loader, a DataLoader, gave no batch: it is empty, or was used up before"),
        ([], "the loader, a list, gave no batch"),
        (TensorDataset(images()), r"a TensorDataset gives samples one by one: pass torch\.utils\.data\.DataLoader"),
        (3, "a int gives no batches: pass a DataLoader"),
    ]
    for batches, match in wrong:
        with pytest.raises(hs.UsageError, match=match):
            hs.extract(model, batches, "3", to=tmp_path / "f")
    assert hooks(model) == 0
    with pytest.raises(hs.UsageError, match=r"to=3 is no directory: give a path, or a hookscope\.Store"):
        hs.extract(model, loader(), "3", to=3)  # type: ignore[call-overload]
    with pytest.raises(hs.SelectionError, match="no site"):
        hs.extract(model, loader(), "conv", to=tmp_path / "g")
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"storage": "hdf5"}, "storage='hdf5' is unknown: choose one of npy, safetensors, parquet"),
        ({"mask": 3}, "mask is a int: give the name"),
        ({"rank": (2, 2)}, r"rank=\(2, 2\) is no place among processes"),
    ],
)
def test_wrong_stores_are_told(how: dict[str, Any], match: str) -> None:
    with pytest.raises(hs.UsageError, match=match):
        hs.Store("f", **how)


def test_the_model_is_left_as_it_was_when_a_forward_fails(tmp_path: Path) -> None:
    model = convnet()
    batches = [torch.randn(4, 3, 6, 6), torch.randn(4, 2, 6, 6)]
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        hs.extract(model, batches, "3", to=tmp_path / "f")
    assert hooks(model) == 0
    assert len(hs.Features(tmp_path / "f", partial=True)["3"]) == 4


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f", dtype="bfloat16")
    code = (
        f"import sys, hookscope as hs; f = hs.Features({str(tmp_path / 'f')!r}); print(f, f['3'][:2], f.ids[:2], f.arrow('3').num_rows); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_bar_is_shown_where_it_is_asked_for_and_only_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hs.extract(convnet(), loader(), "3", to=tmp_path / "f")
    assert capfd.readouterr() == ("", "")
    hs.extract(convnet(), loader(), "3", to=hs.Store(tmp_path / "g", progress=True))
    out, err = capfd.readouterr()
    assert out == ""
    assert "5/5 batches" in err


def test_two_extractions_are_equal_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / name)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_features_feed_a_training(tmp_path: Path) -> None:
    """A probe on the features of a layer, read by worker-ready indexing."""
    features = hs.extract(convnet(), loader(), "3", to=tmp_path / "f")

    class Probing(Dataset[Any]):
        def __len__(self) -> int:
            return features.samples

        def __getitem__(self, i: int) -> Any:
            return features["3"].torch(i), i % 5

    batch, label = next(iter(DataLoader(Probing(), batch_size=4)))
    assert (batch.shape, label.tolist()) == ((4, 5), [0, 1, 2, 3])
