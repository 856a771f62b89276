"""`hookscope run` is `python` to the script: what it sees, prints and ends with; no torch is needed for that."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ._programs import Done, environment, python, watched, write

pytestmark = pytest.mark.slow

PROGRAMS = {
    "argv": "import sys; print(sys.argv, sys.path[0])",
    "names": "print(__name__, __file__, __spec__, __doc__, __package__, __cached__, __loader__, __builtins__, sorted(globals()))",
    "docstring": '"""What it is for."""\nprint(__doc__)',
    "main_guard": "if __name__ == '__main__':\n    print('here')",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\nprint(dataclasses.fields(A)[0].type, A(2))",
    "annotations": "y: int = 2\ndef f(x: int): ...\nprint(__annotations__, f.__annotations__)",
    "future_annotations": "from __future__ import annotations\ndef f(x: int) -> str: ...\nprint(f.__annotations__)",
    "pickle": "import pickle\nclass A: ...\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "import_main": "import __main__\nx = 3\nprint(__main__.x, __main__.__dict__ is globals())",
    "source": "import inspect\ndef f(): return 1\nclass A: ...\nprint(inspect.getsource(f), inspect.getsource(A))",
    "exit_code": "import sys; print('first'); sys.exit(3)",
    "exit_nothing": "import sys; sys.exit()",
    "exit_text": "import sys; sys.exit('a reason')",
    "exit_at_exit": "import atexit, sys\n@atexit.register\ndef bye():\n    print('bye')\n    sys.exit(7)",
    "hard_exit": "import os; print('x', flush=True); os._exit(9)",
    "uncaught": "def f():\n    raise ValueError('no')\nprint('before')\nf()",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('bad') from e",
    "no_exception": "class Stop(BaseException): ...\nraise Stop('x')",
    "excepthook": "import sys\nsys.excepthook = lambda *what: print('mine', what[0], what[2].tb_lineno)\n1 / 0",
    "last_type": "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value))\n1 / 0",
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "syntax_error": "def f(:\n    pass",
    "import_error": "import there_is_no_such_module",
    "stdout_closed": "import sys; print(1); sys.stdout.close()",
    "stdout_replaced": "import sys\n"
    "class Tee:\n    def write(self, text): sys.__stdout__.write(text.upper())\nsys.stdout = Tee()\nprint('abc')",
    "streams": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr): print(s.encoding, s.errors, s.line_buffering, s.name)",
    "unicode": "print('größer ✓ 数')",
    "warning": "import warnings\nwarnings.warn('look')",
    "warning_as_error": "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('look')",
    "fork": "import os, sys\npid = os.fork()\nif not pid:\n    print('child', flush=True)\n    sys.exit(4)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "pool": "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n"
    "    for how in ('fork', 'spawn'):\n        with mp.get_context(how).Pool(1) as pool: print(pool.map(f, [1, 2]))",
    "thread": "import threading, time\ndef late():\n    time.sleep(0.1)\n    print('late')\n"
    "threading.Thread(target=late).start()\nprint('main')",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_and_prints_as_under_python(name: str, tmp_path: Path) -> None:
    script = write(tmp_path, PROGRAMS[name])
    alone = python(script, "--lr", "-m", cwd=tmp_path)
    assert watched("--quiet", script, "--lr", "-m", cwd=tmp_path) == alone
    assert "hookscope" not in alone.err


def test_the_programs_do_what_they_are_here_for(tmp_path: Path) -> None:
    expected = {"exit_code": 3, "exit_text": 1, "hard_exit": 9, "uncaught": 1, "keyboard_interrupt": -signal.SIGINT, "syntax_error": 1}
    codes = {name: python(write(tmp_path, PROGRAMS[name]), cwd=tmp_path).code for name in expected}
    assert codes == expected


@pytest.mark.parametrize("typed", ["train.py", "./train.py", "sub/../train.py", "link.py"])
def test_the_script_is_called_what_was_typed(typed: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    target = write(tmp_path / "elsewhere", PROGRAMS["argv"] + "\n" + PROGRAMS["names"])
    (tmp_path / "link.py").symlink_to(target)
    write(tmp_path, target.read_text())
    assert watched("--quiet", typed, cwd=tmp_path) == python(typed, cwd=tmp_path)


def test_a_sibling_file_is_imported_from_the_scripts_own_folder(tmp_path: Path) -> None:
    write(tmp_path, "raise SystemExit('the wrong one')", "sibling.py")
    write(tmp_path / "code", "where = __file__", "sibling.py")
    script = write(tmp_path / "code", "import sibling; print(sibling.where)")
    done = watched("--quiet", script, cwd=tmp_path)
    assert (done.code, done.out) == (0, f"{tmp_path / 'code' / 'sibling.py'}\n")


MODULES = {
    "pkg/__init__.py": "",
    "pkg/here.py": "import sys\nfrom . import sibling\n"
    "print(sibling.x, __package__, __spec__.name, sys.argv, sys.path[0], sorted(globals()))",
    "pkg/sibling.py": "x = 5",
    "pkg/bad.py": "raise KeyError(1)",
    "pkg/last.py": "import atexit, __main__\nx = 3\natexit.register(lambda: print(__import__('sys').modules['__main__'].x))",
    "pkg/ctrl_c.py": "raise KeyboardInterrupt",
    "runs_itself/__init__.py": "",
    "runs_itself/__main__.py": "print('itself')",
}


@pytest.mark.parametrize("module", ["pkg.here", "pkg.bad", "pkg.last", "pkg.ctrl_c", "runs_itself", "pkg", "there.is.none"])
def test_a_module_ends_and_prints_as_under_python_m(module: str, tmp_path: Path) -> None:
    for name, text in MODULES.items():
        write(tmp_path, text, name)
    alone = python("-m", module, "--lr", "1", cwd=tmp_path)
    assert watched("--quiet", "-m", module, "--lr", "1", cwd=tmp_path) == alone


@pytest.mark.parametrize("end", ["1 / 0", "raise SystemExit('a reason')"])
def test_output_and_what_ends_the_program_keep_their_order_in_one_file(end: str, tmp_path: Path) -> None:
    script = write(tmp_path, f"print('first')\n{end}")
    logs = []
    for prefix in ([], ["-m", "hookscope", "run", "--quiet"]):
        command = [sys.executable, *prefix, script]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60
        )
        logs.append(done.stdout)
    assert logs[0] == logs[1]
    assert logs[0].startswith(b"first")


def test_stdout_in_another_encoding_is_byte_for_byte_the_same(tmp_path: Path) -> None:
    script = write(tmp_path, "print('größer', flush=True)\nimport sys; sys.stdout.buffer.write(b'\\xff\\x00')")
    both = []
    for prefix in ([], ["-m", "hookscope", "run"]):
        env = {**environment(), "PYTHONIOENCODING": "latin-1"}
        both.append(subprocess.run([sys.executable, *prefix, script], cwd=tmp_path, env=env, capture_output=True, check=True).stdout)
    assert both == ["größer\n".encode("latin-1") + b"\xff\x00"] * 2


def test_ctrl_c_stops_the_script_as_it_stops_python_and_the_run_says_interrupted(tmp_path: Path) -> None:
    script = write(tmp_path, "import time\nprint('ready', flush=True)\ntry:\n    time.sleep(60)\nfinally:\n    print('cleaned up')")
    command = [sys.executable, "-m", "hookscope", "run", "--to", "run", str(script)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGINT, "cleaned up\n")
    assert err.startswith(f'Traceback (most recent call last):\n  File "{script}", line 4')
    assert '"status": "interrupted"' in (tmp_path / "run" / "run.json").read_text()


def test_pythonpath_may_be_safe(tmp_path: Path) -> None:
    script = write(tmp_path, "import sys; print(sys.path)")
    env = {"PYTHONSAFEPATH": "1"}
    assert watched("--quiet", script, cwd=tmp_path, env=env) == python(script, cwd=tmp_path, env=env)


def test_a_script_that_is_not_there_is_wrong_use_and_leaves_no_run(tmp_path: Path) -> None:
    done = watched("trian.py", cwd=tmp_path)
    assert done == Done(2, "", "hookscope: cannot run 'trian.py': there is no such file; options of hookscope stand before the script\n")
    assert list(tmp_path.iterdir()) == []
    assert watched(cwd=tmp_path).err == "hookscope: there is no script to run: hookscope run [options] script.py [its arguments]\n"
