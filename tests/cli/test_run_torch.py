"""`hookscope run` around programs that train: the same output to the last bit, and a run of what they trained."""

import signal
from pathlib import Path

import pytest

import hookscope as hs

from ._programs import TRAINING, python, watched, write

pytestmark = pytest.mark.slow

BEFORE_TORCH = """
import importlib.util, os
os.environ["OMP_NUM_THREADS"] = "2"
print(importlib.util.find_spec("torch").name)  # as transformers asks whether there is a torch
"""
TO_THE_END = """
import atexit, threading, time
print(torch.get_num_threads(), torch.__spec__.loader, torch.__loader__)
for _ in range(3): print(step())
def late():
    threading.main_thread().join()
    print("late", step())
threading.Thread(target=late).start()
def last():
    print("last", step())
    print([p.tolist() for p in model.parameters()], torch.rand(1).item())
atexit.register(last)
"""


def test_a_training_prints_the_same_bits_and_is_recorded_to_its_very_end(tmp_path: Path) -> None:
    script = write(tmp_path, BEFORE_TORCH + TRAINING + TO_THE_END)
    alone = python(script, cwd=tmp_path)
    done = watched("--to", "run", script, cwd=tmp_path)
    assert (done.code, done.out) == (alone.code, alone.out)
    assert alone.out.splitlines()[1].startswith("2 <")
    assert done.err == "hookscope: 5 step(s) recorded in run: healthy\n  see it: hookscope show run\n"
    assert hs.Run(tmp_path / "run").meta.status == "finished"


@pytest.mark.slow
def test_warnings_turned_into_errors_do_not_let_a_finding_break_the_training(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING + "for i in range(4): print(step(torch.full((4, 2), float('nan') if i == 1 else 1.0)))")
    env = {"PYTHONWARNINGS": "error"}
    alone = python(script, cwd=tmp_path, env=env)
    done = watched("--to", "run", script, cwd=tmp_path, env=env)
    assert (alone.code, alone.err) == (0, "")
    assert (done.code, done.out) == (0, alone.out)
    assert "4 step(s) recorded in run: sick" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_program_that_trains_nothing_is_told_apart(tmp_path: Path) -> None:
    script = write(tmp_path, "import torch\nwith torch.no_grad(): print(torch.nn.Linear(2, 1)(torch.ones(1, 2)).shape)")
    done = watched("--select", "nothing.of.the.kind", script, cwd=tmp_path)
    assert (done.code, done.out) == (0, "torch.Size([1, 1])\n")
    assert done.err.startswith("hookscope: nothing was recorded in runs/train-1: no model with parameters was trained\n")


@pytest.mark.slow
def test_a_run_that_ends_by_os_exit_can_be_read(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING + "import os, time\nstep(); step(); time.sleep(1.1); step(); time.sleep(1); os._exit(9)")
    assert watched("--to", "run", script, cwd=tmp_path).code == 9
    run = hs.Run(tmp_path / "run")
    assert run.meta.status == "running"
    assert run.steps.tolist() == [0, 1, 2]


@pytest.mark.slow
def test_ctrl_c_in_a_training_ends_by_the_signal_and_the_run_is_whole(tmp_path: Path) -> None:
    script = write(
        tmp_path, TRAINING + "import os, signal\nfor i in range(9):\n    step()\n    if i == 4: os.kill(os.getpid(), signal.SIGINT)"
    )
    done = watched("--to", "run", script, cwd=tmp_path)
    assert done.code == -signal.SIGINT
    assert done.err.startswith("Traceback (most recent call last):\n  File ")
    assert "KeyboardInterrupt\nhookscope: 5 step(s) recorded in run" in done.err
    run = hs.Run(tmp_path / "run")
    assert (run.meta.status, len(run.steps)) == ("interrupted", 5)


@pytest.mark.slow
def test_a_forked_child_that_trains_too_leaves_nothing_in_the_run(tmp_path: Path) -> None:
    child = "if not os.fork():\n    for _ in range(3): step()\n    sys.exit(0)\n"
    script = write(tmp_path, TRAINING + f"import os, sys\nstep(); step()\n{child}os.wait()\nstep()\nprint(step())")
    alone = python(script, cwd=tmp_path)
    done = watched("--to", "run", script, cwd=tmp_path)
    assert (done.code, done.out) == (0, alone.out)
    run = hs.Run(tmp_path / "run")
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert float(run["loss"].values[-1]) == pytest.approx(float(alone.out), rel=1e-6)


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.full((2,), float(i))
if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for how in ("fork", "spawn"):
        for x in DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context=how):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            print(x.tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "module"])
def test_workers_of_a_data_loader_work_forked_and_spawned(how: str, tmp_path: Path) -> None:
    script = write(tmp_path, LOADER)
    command = [script] if how == "script" else ["-m", "train"]
    done = watched("--to", "run", *command, cwd=tmp_path)
    assert (done.code, done.out) == (0, "[[0.0, 0.0], [1.0, 1.0]]\n[[2.0, 2.0], [3.0, 3.0]]\n" * 2)
    assert done.err == "hookscope: 4 step(s) recorded in run: healthy\n  see it: hookscope show run\n"
    assert {site.path for site in hs.Run(tmp_path / "run").sites if site.kind == "output"} == {""}


@pytest.mark.slow
def test_a_program_may_change_directory_and_use_hookscope_itself(tmp_path: Path) -> None:
    own = "import hookscope as hs, os\nos.mkdir('deep'); os.chdir('deep')\n"
    own += "with hs.watch(model, to='own') as w:\n    step()\nos.chdir('/')\nstep()\nprint(w.run.steps.tolist())"
    done = watched(write(tmp_path, TRAINING + own), cwd=tmp_path)
    assert (done.code, done.out) == (0, "[0]\n")
    assert done.err.startswith("hookscope: 2 step(s) recorded in runs/train-1: healthy\n")
    assert hs.Run(tmp_path / "deep/own").steps.tolist() == [0]
