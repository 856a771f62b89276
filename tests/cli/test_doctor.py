"""`hookscope doctor`: the environment, what a run has seen, and a script run to see what hooks see of it."""

import importlib.metadata
import json
import platform
from pathlib import Path
from textwrap import indent

import pytest
import torch

from hookscope import __version__

from ..report._runs import deep
from ._programs import TRAINING, Done, python, write

pytestmark = pytest.mark.slow

# A layer whose weight is used without a call, one that is not used, and a trained one in a plain list.
HIDING = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.spare, self.plain = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), [nn.Linear(4, 1)]
    def forward(self, x):
        return self.plain[0](F.linear(self.a(x), self.b.weight))
def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
main()
print("trained", *sys.argv[1:])
"""
KINDS = ["functional", "unused", "hidden_parameters"]


def doctor(*args: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Done:
    return python("-W", "error", "-m", "hookscope", "doctor", *args, cwd=cwd, env=env)


def kinds(out: str) -> list[str]:
    return [finding["evidence"]["kind"] for finding in json.loads(out)["findings"]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = deep(2, 5)
    made.events.append({"event": "unhookable", "modules": ["h.9"]})
    return made.write(tmp_path / "base")


def test_the_environment_is_what_it_is(tmp_path: Path) -> None:
    found = json.loads(doctor("--json", cwd=tmp_path).out)
    packages = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "pyarrow", "rich")}
    assert found["versions"] == {"hookscope": __version__, "python": platform.python_version(), **packages}
    assert (found["format"], found["ready"], found["threads"]) == (1, True, 1)  # OMP_NUM_THREADS is 1
    assert (found["devices"]["CUDA"] is not None) == torch.cuda.is_available()
    assert {"report", "view", "transformers"} <= {extra["name"] for extra in found["extras"]}
    assert {"dev", "docs", "bench"}.isdisjoint(extra["name"] for extra in found["extras"])


def test_an_extra_is_missing_where_one_of_its_packages_is(tmp_path: Path) -> None:
    installed = {dist.name.lower().replace("_", "-") for dist in importlib.metadata.distributions()}
    for extra in json.loads(doctor("--json", cwd=tmp_path).out)["extras"]:
        assert extra["missing"] == [package for package in extra["packages"] if package.lower() not in installed]


def test_it_says_why_the_native_kernel_is_not_used(tmp_path: Path) -> None:
    done = doctor(cwd=tmp_path, env={"HOOKSCOPE_NATIVE": "0"})
    assert done.code == 0
    assert "torch operations: HOOKSCOPE_NATIVE=0 asks for it" in done.out
    assert done.out.startswith("✓ ready, and slower on a CPU than it could be")


def test_the_environment_in_a_pipe_is_plain_text_of_at_most_100_columns(tmp_path: Path) -> None:
    done = doctor(cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith(("  v", "  k"))] == ["versions", "kernel"]


def test_without_torch_runs_can_still_be_read(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom importlib.metadata import PackageNotFoundError\nfrom hookscope._cli import _environment, main\n"
        "real = _environment.version\n"
        "def version(name):\n    if name == 'torch': raise PackageNotFoundError(name)\n    return real(name)\n"
        "_environment.version = version\nmain(['doctor'])\nsys.exit(77 if 'torch' in sys.modules else 0)"
    )
    done = python("-c", program, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "torch not installed" in done.out
    assert "nothing can be watched: pip install torch" in " ".join(done.out.split())


def test_a_run_is_told_without_torch(run: Path, tmp_path: Path) -> None:
    program = "import sys\nfrom hookscope._cli import main\nmain(sys.argv[1:])\nsys.exit(77 if 'torch' in sys.modules else 0)"
    done = python("-c", program, "doctor", run, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("• partly seen")
    assert "9 of 10 fired in the training" in done.out
    assert "h.9: 1 scripted module takes no hooks" in " ".join(done.out.split())


def test_a_run_as_json_is_json_alone(run: Path, tmp_path: Path) -> None:
    done = doctor("--json", run, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["run"], found["fired"], found["steps"]) == (str(run), 9, 5)
    assert kinds(done.out) == ["unhookable"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("nothing",), 3, "nothing"),
        (("nothing.py",), 2, "cannot run 'nothing.py': there is no such file"),
        (("base", "--json"), 2, "'--json' follows the run 'base': options stand before it"),
        (("--colour",), 2, "unrecognized arguments: --colour"),
    ],
)
def test_wrong_use_is_one_line(args: tuple[str, ...], code: int, words: str, run: Path, tmp_path: Path) -> None:
    done = doctor(*args, cwd=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_script_is_run_for_real_and_told_what_hooks_see_of_it(tmp_path: Path) -> None:
    done = doctor(write(tmp_path, HIDING), "--lr", "-m", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    first, second, *_ = done.out.splitlines()
    assert first == "trained --lr -m"
    assert second.startswith("• partly seen  ")
    told = " ".join(done.out.split())
    for words in ("b: 1 module was never called though", "spare: 1 module with 20 parameters", "the loss depends on 2 parameters"):
        assert words in told
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]  # the run was a temporary one


@pytest.mark.slow
def test_with_json_the_scripts_output_goes_elsewhere(tmp_path: Path) -> None:
    done = doctor("--json", write(tmp_path, HIDING), cwd=tmp_path)
    assert kinds(done.out) == KINDS
    assert done.err == "trained\n"


@pytest.mark.slow
def test_a_sound_script_is_all_seen(tmp_path: Path) -> None:
    done = doctor(write(tmp_path, TRAINING + "for _ in range(3): step()"), cwd=tmp_path)
    assert done.out.startswith("✓ all seen")
    assert "3 of 3 fired in the training" in done.out


@pytest.mark.slow
def test_a_script_that_fails_is_told_as_far_as_it_came(tmp_path: Path) -> None:
    done = doctor(write(tmp_path, TRAINING + "step()\nraise SystemExit(7)"), cwd=tmp_path)
    assert done.code == 0
    assert "train.py, which ended with status 7" in " ".join(done.out.split())
    assert "3 of 3 fired" in done.out


def test_a_script_without_a_training_has_nothing_recorded(tmp_path: Path) -> None:
    done = doctor(write(tmp_path, "print('hello')"), cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("hello\n○ nothing recorded")


@pytest.mark.slow
def test_a_compiled_model_that_is_gone_when_the_script_ends_was_seen_in_its_graph(tmp_path: Path) -> None:
    text = TRAINING.replace("def step", "fast = torch.compile(model, backend='eager')\ndef step").replace("model(x)", "fast(x)")
    script = write(tmp_path, "def main():\n" + indent(text + "step(); step()\n", "    ") + "main()\n")
    assert kinds(python("-m", "hookscope", "doctor", "--json", script, cwd=tmp_path).out) == []
