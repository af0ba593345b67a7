"""The chain of the demo: nothing is redone that is up to date, and exactly what depends on a change is."""

import re
from types import SimpleNamespace

import pytest

from launch_scripts.demo.__main__ import REPOSITORY, stages
from launch_scripts.demo.stages import Chain, Stage
from launch_scripts.demo.summary import Paths


@pytest.fixture
def chain(tmp_path):
    """source → a → b → c, and d beside them, which reads only a."""
    (tmp_path / "source").write_text("one")
    (tmp_path / "a_code").mkdir()

    def copy(source, target, prefix):
        return lambda: target.write_text(prefix + source.read_text().upper())

    def stage(name, source, **changes):
        target = tmp_path / name
        run = copy(source, target, name)
        return Stage(name, **({"run": run, "inputs": (source,), "outputs": (target,)} | changes))

    stages = [
        stage("a", tmp_path / "source", inputs=(tmp_path / "source", tmp_path / "a_code")),
        stage("b", tmp_path / "a"),
        stage("c", tmp_path / "b"),
        stage("d", tmp_path / "a", settings={"size": 1}),
    ]
    return lambda: Chain(tmp_path / "memory", lambda line: None).run(stages)


def test_everything_is_made_once(chain, tmp_path):
    assert chain() == ["a", "b", "c", "d"]
    assert (tmp_path / "c").read_text() == "cBAONE"
    assert chain() == []


@pytest.mark.parametrize(
    ("deleted", "made_again"),
    [("a", ["a", "b", "c", "d"]), ("b", ["b", "c"]), ("c", ["c"]), ("d", ["d"]), ("memory/b.json", ["b", "c"])],
)
def test_what_was_deleted_is_made_again_with_exactly_its_dependants(chain, tmp_path, deleted, made_again):
    chain()
    (tmp_path / deleted).unlink()
    assert chain() == made_again
    assert chain() == []


def test_what_depends_on_a_change_follows(chain, tmp_path):
    chain()
    (tmp_path / "source").write_text("two")
    assert chain() == ["a", "b", "c", "d"]
    assert (tmp_path / "c").read_text() == "cBATWO"


def test_a_changed_output_is_made_again_with_exactly_its_dependants(chain, tmp_path):
    chain()
    (tmp_path / "b").write_text("tampered")
    assert chain() == ["b", "c"]
    assert (tmp_path / "c").read_text() == "cBAONE"


def test_code_is_an_input_too(chain, tmp_path):
    chain()
    (tmp_path / "a_code" / "new.py").write_text("x = 1")
    assert chain() == ["a", "b", "c", "d"]


def test_a_changed_setting_is_a_change(tmp_path):
    def run_with(size):
        stage = Stage("s", lambda: (tmp_path / "out").write_text(str(size)), (), (tmp_path / "out",), {"size": size})
        return Chain(tmp_path / "memory", lambda line: None).run([stage])

    assert [run_with(1), run_with(1), run_with(2), run_with(2)] == [["s"], [], ["s"], []]


def test_an_interruption_between_a_stage_and_its_dependants_forgets_nothing(tmp_path):
    (tmp_path / "source").write_text("x")
    fail = []

    def make_b():
        if fail:
            raise KeyboardInterrupt
        (tmp_path / "b").write_text("same")

    a = Stage("a", lambda: (tmp_path / "a").write_text("same"), (tmp_path / "source",), (tmp_path / "a",))
    b = Stage("b", make_b, (tmp_path / "a",), (tmp_path / "b",))
    chain = Chain(tmp_path / "memory", lambda line: None)
    assert chain.run([a, b]) == ["a", "b"]
    (tmp_path / "a").unlink()
    fail.append(True)
    with pytest.raises(KeyboardInterrupt):
        chain.run([a, b])
    fail.clear()
    assert chain.run([a, b]) == ["b"]


@pytest.mark.parametrize("resumable", [True, False])
def test_an_interrupted_stage_finds_its_outputs_only_if_it_can_continue(tmp_path, resumable):
    out = tmp_path / "out"
    found = []

    def interrupted_once():
        found.append(out.exists())
        out.write_text("half" if len(found) == 1 else "whole")
        if len(found) == 1:
            raise KeyboardInterrupt

    stage = Stage("s", interrupted_once, (), (out,), resumable=resumable)
    chain = Chain(tmp_path / "memory", lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        chain.run([stage])
    assert chain.run([stage]) == ["s"]
    assert found == [False, resumable]
    assert chain.run([stage]) == []


def test_a_stage_that_makes_nothing_is_an_error(tmp_path):
    stage = Stage("s", lambda: None, (), (tmp_path / "out",))
    with pytest.raises(RuntimeError, match="stage s did not make"):
        Chain(tmp_path / "memory", lambda line: None).run([stage])


def modules_used(name):
    """A module of data_tools, and those that it imports at any depth."""
    found, left = set(), [name]
    while left:
        found.add(name := left.pop())
        text = (REPOSITORY / "data_tools" / f"{name}.py").read_text(encoding="utf-8")
        left += set(re.findall(r"from data_tools\.(\w+) import", text)) - found
    return found


@pytest.mark.parametrize(
    ("stage", "tool"), [("corpus", "sample_corpus"), ("tokenizer", "train_tokenizer"), ("data", "preprocess")]
)
def test_a_stage_of_the_demo_depends_on_all_the_tools_that_it_runs(tmp_path, stage, tool):
    asked = SimpleNamespace(packages=[], settings=[], min_megabytes=8, vocab_size=1000, config=tmp_path / "x.yaml")
    inputs = next(one.inputs for one in stages(Paths(tmp_path), asked) if one.name == stage)
    assert modules_used(tool) <= {path.stem for path in inputs if path.parent == REPOSITORY / "data_tools"}
