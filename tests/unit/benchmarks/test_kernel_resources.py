"""The published figures of the kernels: what is compiled anew, what a check finds, and the page of them."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import kernel_resources
from glm_kernels.compilation import Compiled

KERNELS = {"forward": "program 1", "backward": "program 2", "other tile, same program": "program 1"}


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Three kernels for one architecture, whose programs and figures tests may change; and what was compiled."""
    state = SimpleNamespace(programs=dict(KERNELS), spills=0, compiled=[], made=[])

    def every_compilation():
        for name in state.programs:
            yield "attention", SimpleNamespace(name=name), "sm_80"

    def compile_for(compilation, arch):
        state.compiled.append(compilation.name)
        return Compiled(100, state.spills, 2048, 1, 8, ())

    monkeypatch.setattr(kernel_resources, "every_compilation", every_compilation)
    monkeypatch.setattr("glm_kernels.compilation.compile_for", compile_for)

    def fingerprint(compilation, arch):
        state.made.append(compilation.name)
        return state.programs[compilation.name]

    monkeypatch.setattr("glm_kernels.compilation.fingerprint", fingerprint)
    monkeypatch.setattr(kernel_resources, "_triton_version", lambda: "9.9")
    monkeypatch.setattr(kernel_resources, "SOURCES", tmp_path / "kernels")
    (tmp_path / "kernels/loss").mkdir(parents=True)
    (tmp_path / "kernels/loss/op.py").write_text("one")
    return state


@pytest.fixture
def run(compiler, tmp_path):
    def run(*arguments):
        compiler.compiled.clear()
        return kernel_resources.main([*arguments, "--results", str(tmp_path), "--page", str(tmp_path / "page.md")])

    return run


def test_one_program_is_compiled_once_and_again_only_when_it_changes(run, compiler, tmp_path):
    run()
    assert compiler.compiled == ["forward", "backward"]
    run()
    assert compiler.compiled == []
    compiler.programs["backward"] = "program 3"
    run()
    assert compiler.compiled == ["backward"]
    run("--anew")
    assert compiler.compiled == ["forward", "backward"]
    rows = json.loads((tmp_path / "kernel_resources_triton_9.9.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["name"], row["program"]) for row in rows] == list(compiler.programs.items())


def test_a_check_of_what_was_written_finds_nothing(run, capsys):
    run()
    assert run("--check", "--recompile", "3") == 0
    assert capsys.readouterr().out == "kernel_resources_triton_9.9.json: 0 differences\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backward": "program 3"}, "attention backward sm_80: the figures are of another program"),
        ({"new": "program 4"}, "attention new sm_80: has no figures"),
        ({"backward": None}, "attention backward sm_80: its kernel is gone"),
    ],
)
def test_a_check_names_each_kernel_that_is_not_as_published(change, message, run, compiler, capsys):
    run()
    compiler.programs = {name: program for name, program in (compiler.programs | change).items() if program}
    assert run("--check", "--anew") == 1
    assert message in capsys.readouterr().out


def test_programs_are_made_for_a_check_only_where_a_file_or_a_figure_has_changed(run, compiler, tmp_path, capsys):
    def made():
        compiler.made.clear()
        run("--check")
        return compiler.made

    run()
    assert made() == []
    (tmp_path / "kernels/loss/op.py").write_text("two")
    assert made() == list(KERNELS)
    compiler.programs["backward"] = "program 3"
    assert run("--check") == 1
    assert "attention backward sm_80: the figures are of another program" in capsys.readouterr().out
    run()
    assert made() == []
    file = tmp_path / "kernel_resources_triton_9.9.json"
    file.write_text(file.read_text().replace("program 3", "program 4"))
    assert made() == list(compiler.programs)
    (tmp_path / "kernels/loss/op.py").rename(tmp_path / "kernels/loss/other.py")
    run()
    (tmp_path / "kernels/loss/other.py").unlink()
    assert made() == list(compiler.programs)


def test_figures_that_the_compiler_no_longer_gives_are_found_by_compiling(run, compiler, capsys):
    run()
    compiler.spills = 8
    assert run("--check") == 0
    assert run("--check", "--recompile", "2") == 1
    assert "'spill_bytes': 8" in capsys.readouterr().out


def test_without_figures_every_kernel_is_missing(run, capsys):
    assert run("--check") == 1
    assert "3 differences" in capsys.readouterr().out


def test_the_page_has_a_column_for_each_architecture_and_version(run, tmp_path):
    run()
    older = {"triton": "9.8", "rows": [{"package": "loss", "name": "sum", "arch": "sm_90"}]}
    older["rows"][0] |= {"registers": 32, "spill_bytes": 4, "shared_bytes": 512}
    (tmp_path / "kernel_resources_triton_9.8.json").write_text(json.dumps(older), encoding="utf-8")
    text = kernel_resources.page(kernel_resources.written(tmp_path))
    assert "| kernel | sm_80, Triton 9.9 | sm_80, Triton 9.8 | sm_90, Triton 9.9 | sm_90, Triton 9.8 |" in text
    assert "| forward | 100 / 0 / 2 | – | – | – |" in text
    assert "| sum | – | – | – | 32 / 4 / 0.5 |" in text
    assert text.index("## Attention") < text.index("## Loss")
