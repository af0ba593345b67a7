"""A machine with GPUs, made of one without: a library that is compiled here, and an environment for processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.cpp_extension import include_paths, library_paths

_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[1]
_ENTRY_POINT = "[torch.backends]\nsimulated_gpu = tests.simulated_gpu.cuda:start\n"


class SimulatedMachine:
    """Makes the library in a directory, in ten seconds; skips the test where there is no compiler.

    Attributes:
        environment: variables of a process that is to have GPUs.
    """

    def __init__(self, directory: Path, *, gpus: int):
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("no g++, with which the simulated GPU is made")
        if torch.backends.cuda.is_built():
            pytest.skip("a torch with CUDA has no room for a simulated GPU")
        library = directory / "device.so"
        options = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w"]
        paths = [*(f"-I{path}" for path in include_paths()), *(f"-L{path}" for path in library_paths())]
        command = [compiler, *options, *paths, str(_HERE / "device.cpp"), "-o", str(library)]
        done = subprocess.run([*command, "-ltorch_cpu", "-lc10"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        package = directory / "simulated_gpu-0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated_gpu\nVersion: 0\n", encoding="utf-8")
        (package / "entry_points.txt").write_text(_ENTRY_POINT, encoding="utf-8")
        path = [str(directory), str(_REPOSITORY), str(_REPOSITORY / "kernels")]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "SIMULATED_GPU_LIBRARY": str(library),
            "SIMULATED_GPUS": str(gpus),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command on this machine, to its end."""
        environment = self.environment | variables
        return subprocess.run(
            command, env=environment, cwd=_REPOSITORY, capture_output=True, text=True, check=False, timeout=300
        )

    @contextmanager
    def server(self, **variables: str) -> Iterator[Server]:
        """What runs functions in the ranks of a job there, and has imported what they need."""
        command = [sys.executable, "-m", "tests.simulated_gpu.server"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=self.environment | variables, cwd=_REPOSITORY, **pipes) as process:
            try:
                yield Server(process)
            finally:
                process.stdin.close()
                process.wait(60)


class Server:
    """The other end of tests/simulated_gpu/server.py."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def run_ranks(self, size: int, module: str, function: str, *args: Any) -> list[Any]:
        """`tests.distributed.ranks.run_ranks` of a function by its names. Raises AssertionError as that does."""
        print(json.dumps([size, module, function, args]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the simulated machine has ended"
        results, error = json.loads(answer)
        assert error is None, error
        return results
