"""`make demo` at toy size, made once for all tests that need one, in whatever process they run."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from launch_scripts.demo.summary import Paths

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = Path("runs/demo")  # unless --directory says otherwise
CORPUS = ("--min-megabytes", "0.3", "--packages", "numpy", "argparse", "asyncio", "email", "unittest", "logging")
SETTINGS = (
    *("model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "train.steps=6"),
    *("train.log_interval=2", "train.eval_interval=3", "train.eval_samples=8", "checkpoint.save_interval=3"),
)


def like_a_clone(directory: Path) -> Path:
    """Make a directory like a fresh clone, where commands may write."""
    directory.mkdir()
    for name in ("configs", "launch_scripts", "pretrain_glm.py", "Makefile", "setup.py", "constraints.txt"):
        (directory / name).symlink_to(REPOSITORY / name)
    return directory


class ToyDemo:
    """A demo that has run, in a directory like a clone.

    Attributes:
        paths: where it lies.
        kept: a copy of it, which nobody changes.
        output: everything that it has printed.
    """

    def __init__(self, place: Path):
        self._clone = place / "clone"
        self.paths = Paths(self._clone / RUN)
        self.kept = place / "kept"
        self._printed = place / "printed.txt"

    @classmethod
    def made_once(cls, place: Path) -> "ToyDemo":
        """The one at this place; processes that ask for it at once wait for the one that makes it."""
        demo = cls(place)
        place.mkdir(exist_ok=True)
        with open(place / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not demo._printed.exists():
                like_a_clone(demo._clone)
                output = demo.run()
                shutil.copytree(demo.paths.root, demo.kept)
                demo._printed.write_text(output, encoding="utf-8")
        return demo

    @property
    def output(self) -> str:
        return self._printed.read_text(encoding="utf-8")

    def run(self, *settings: str, module: str = "launch_scripts.demo", more: tuple[str, ...] = ()) -> str:
        """Bring it up to date by the command that made it: everything that was printed."""
        command = [sys.executable, "-m", module, *CORPUS, "--vocab-size", "1000"]
        python_path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels")])
        result = subprocess.run(
            [*command, "--settings", *SETTINGS, *settings, *more],
            cwd=self._clone,
            env=os.environ | {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout

    def restored(self, *settings: str) -> str:
        """The same, but what is to be made again is taken from the copy."""
        return self.run(*settings, module="tests.endtoend.restored_demo", more=("--kept", str(self.kept)))


def stages_run(output: str) -> list[str]:
    """The names of the stages that were not up to date."""
    lines = [line.removeprefix("── ") for line in output.splitlines() if line.startswith("── ")]
    return [line.removesuffix(": running") for line in lines if line.endswith(": running")]
