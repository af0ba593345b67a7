"""`make demo` at toy size: the whole path, then nothing, then exactly what a deletion concerns."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch_scripts.demo.summary import Paths

REPOSITORY = Path(__file__).resolve().parents[2]
STAGES = ["corpus", "tokenizer", "data", "training", "release", "generations"]
PACKAGES = ("numpy", "argparse", "asyncio", "email", "unittest", "logging")
TOY = (
    *("model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "train.steps=6"),
    *("train.log_interval=2", "train.eval_interval=3", "train.eval_samples=8", "checkpoint.save_interval=3"),
)

pytestmark = pytest.mark.distributed


class Demo:
    """A demo directory and the command that brings it up to date."""

    def __init__(self, root):
        self.paths = Paths(root)

    def run(self, *settings):
        """Returns the stages that ran, and everything that was printed."""
        command = [sys.executable, "-m", "launch_scripts.demo", "--directory", str(self.paths.root)]
        command += ["--min-megabytes", "0.3", "--vocab-size", "1000", "--packages", *PACKAGES]
        python_path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels")])
        result = subprocess.run(
            [*command, "--settings", *TOY, *settings],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        lines = [line.removeprefix("── ") for line in result.stdout.splitlines() if line.startswith("── ")]
        return [line.removesuffix(": running") for line in lines if line.endswith(": running")], result.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    demo = Demo(tmp_path_factory.mktemp("demo"))
    stages, demo.output = demo.run()
    assert stages == STAGES
    return demo


def test_it_ends_with_what_was_reached_and_where_it_lies(demo):
    closing = demo.output[demo.output.rindex("tokens seen") :]
    for shown in ("first", "validation", "unigram entropy", "tok/s", "[MASK]", "[gMASK]"):
        assert shown in closing
    for path in (demo.paths.release, demo.paths.metrics, demo.paths.plot):
        assert str(path) in closing
        assert path.exists()
    generations = json.loads(demo.paths.generations.read_text())
    assert len(generations) == 3
    assert all(g["text"] and "MASK]" not in g["text"] for g in generations)


def test_it_trains_under_the_launcher_with_two_processes(demo):
    start = json.loads(demo.paths.metrics.read_text().splitlines()[0])
    assert start["kind"] == "start"
    assert start["replicas"] == 2


def test_a_second_demo_redoes_nothing_and_takes_less_than_ten_seconds(demo):
    started = time.monotonic()
    stages, output = demo.run()
    assert stages == []
    assert time.monotonic() - started < 10
    assert output[output.rindex("tokens seen") :] == demo.output[demo.output.rindex("tokens seen") :]


def test_what_was_deleted_is_made_again_with_exactly_its_dependants(demo):
    shutil.rmtree(demo.paths.release)
    assert demo.run()[0] == ["release", "generations"]
    next((demo.paths.data / "train").glob("*.bin")).unlink()
    assert demo.run()[0] == ["data", "training", "release", "generations"]
    assert demo.run()[0] == []


def test_what_was_changed_is_made_again_with_exactly_its_dependants(demo):
    assert demo.run("train.steps=4")[0] == ["training", "release", "generations"]
    with open(demo.paths.release / "model.safetensors", "ab") as stream:
        stream.write(b"x")
    assert demo.run("train.steps=4")[0] == ["release", "generations"]
