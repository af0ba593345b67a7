"""`make demo` at toy size: the whole path, then nothing, then exactly what a deletion concerns."""

import json
import shutil
import time

import pytest

from tests.endtoend.toy_demo import RUN, stages_run

STAGES = ["corpus", "tokenizer", "data", "training", "release", "generations"]

pytestmark = pytest.mark.distributed


def closing(output):
    return output[output.rindex("tokens seen") :]


def test_it_ends_with_what_was_reached_and_where_it_lies(toy_demo):
    assert stages_run(toy_demo.output) == STAGES
    for shown in ("first", "validation", "unigram entropy", "tok/s", "[MASK]", "[gMASK]"):
        assert shown in closing(toy_demo.output)
    for path in (toy_demo.paths.release, toy_demo.paths.metrics, toy_demo.paths.plot):
        assert str(RUN / path.relative_to(toy_demo.paths.root)) in closing(toy_demo.output)
        assert path.exists()
    generations = json.loads(toy_demo.paths.generations.read_text())
    assert len(generations) == 3
    assert all(g["text"] and "MASK]" not in g["text"] for g in generations)


def test_it_trains_under_the_launcher_with_two_processes(toy_demo):
    start = json.loads(toy_demo.paths.metrics.read_text().splitlines()[0])
    assert start["kind"] == "start"
    assert start["replicas"] == 2


def test_a_second_demo_redoes_nothing_and_takes_less_than_ten_seconds(toy_demo):
    started = time.monotonic()
    output = toy_demo.run()
    assert stages_run(output) == []
    assert time.monotonic() - started < 10
    assert closing(output) == closing(toy_demo.output)


def test_what_was_deleted_is_made_again_with_exactly_its_dependants(toy_demo):
    toy_demo.paths.generations.unlink()
    assert stages_run(toy_demo.run()) == ["generations"]
    assert toy_demo.paths.generations.exists()
    # What the other stages do when they run again is what they did at first: their outputs are gone by then.
    shutil.rmtree(toy_demo.paths.release)
    assert stages_run(toy_demo.restored()) == ["release", "generations"]
    next((toy_demo.paths.data / "train").glob("*.bin")).unlink()
    assert stages_run(toy_demo.restored()) == ["data", "training", "release", "generations"]
    assert stages_run(toy_demo.restored()) == []


def test_what_was_changed_is_made_again_with_exactly_its_dependants(toy_demo):
    assert stages_run(toy_demo.restored("train.steps=4")) == ["training", "release", "generations"]
    with open(toy_demo.paths.release / "model.safetensors", "ab") as stream:
        stream.write(b"x")
    assert stages_run(toy_demo.restored("train.steps=4")) == ["release", "generations"]
