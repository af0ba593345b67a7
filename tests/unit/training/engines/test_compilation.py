"""Whether norms and GELU are compiled is tried before there is a model, and all ranks do the same."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from megatron_glm.errors import ConfigError
from megatron_glm.training.engines import compilation
from megatron_glm.training.engines.compilation import settle_compilation
from tests.unit.training.engines.least_config import least_config


class TwoRanks:
    """This rank, and another whose report is known; None: it is this one's."""

    rank, size = 0, 2

    def __init__(self, other=None):
        self._other = other

    def gather(self, value):
        return [value, self._other or value]


@pytest.fixture
def tried(monkeypatch):
    """Says whether there is a GPU and what comes of compiling; gives whether norms were compiled, each time."""
    asked = []

    def there(*, gpu=False, error=None, apex=False):
        def compile(config, *, norms):
            asked.append(norms)
            if error:
                raise error

        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(compilation, "try_parts", compile)
        monkeypatch.setattr(compilation, "apex_normalizes", lambda train: apex)
        return asked

    return there


def config(compile):
    return least_config(compile=compile)


@pytest.mark.parametrize(
    ("wanted", "gpu", "is_on"),
    [("auto", True, True), ("auto", False, False), ("always", False, True), ("never", True, False)],
)
def test_auto_compiles_on_a_gpu_and_never_on_a_cpu(tried, wanted, gpu, is_on):
    asked = tried(gpu=gpu)
    settled = settle_compilation(config(wanted), TwoRanks())
    assert settled.is_on is is_on
    assert settled.config.train.compile == ("always" if is_on else "never")
    assert asked == [True] * is_on
    assert ("norms, bias + GELU; torch.compile took" in settled.told) is is_on


def test_everything_else_stays_as_it_was(tried):
    tried(gpu=True)
    before = config("auto")
    after = settle_compilation(before, TwoRanks()).config
    assert after.model_dump() == config("always").model_dump()
    assert before.train.compile == "auto"


@pytest.mark.parametrize("other", [None, [None, "InvalidCxxCompiler: none", None, 0.1]])
def test_where_one_rank_cannot_auto_does_without_on_all_and_says_so(tried, other):
    tried(gpu=True, error=None if other else RuntimeError("no compiler\n\nat all"))
    settled = settle_compilation(config("auto"), TwoRanks(other))
    assert not settled.is_on
    where = "rank 1: InvalidCxxCompiler: none" if other else "rank 0: RuntimeError: no compiler at all"
    assert settled.told == f"NOTHING, and the run is slower for it: torch.compile fails on {where}"


@pytest.mark.parametrize("other", [None, [None, "InvalidCxxCompiler: none", None, 0.1]])
def test_always_is_refused_in_one_line_that_names_the_way_out(tried, other):
    tried(error=None if other else RuntimeError("no compiler\n\nat all"))
    where = "rank 1: InvalidCxxCompiler: none" if other else "rank 0: RuntimeError: no compiler at all"
    with pytest.raises(ConfigError) as caught:
        settle_compilation(config("always"), TwoRanks(other))
    assert str(caught.value).startswith(f"train.compile: always, but torch.compile fails on {where}; it needs")
    assert str(caught.value).endswith("or set train.compile=never")
    assert "\n" not in str(caught.value)


def test_what_led_to_an_error_is_told(tried):
    error = RuntimeError("backend='inductor' raised:")
    error.__cause__ = ValueError("no such program: " + "-" * 999)
    tried(error=error)
    with pytest.raises(ConfigError, match="ValueError: no such program: -") as caught:
        settle_compilation(config("always"), TwoRanks())
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("code", "output", "told"),
    [
        (
            1,
            b"In file included from a.h:3:\nb.h:2:10: fatal error: Python.h: No such file\n  2 | #include",
            "b.h:2:10: fa",
        ),
        (1, b"\nas: /tmp/x.s: No space left on device\n\n", "as: /tmp/x.s: No space left on device"),
        (1, b"/usr/bin/ld: final link failed: no room\ncollect2: error: ld returned 1\n", "/usr/bin/ld: final link fa"),
        (-9, b"", "it said nothing"),
    ],
)
def test_of_a_compiler_that_fails_its_complaint_is_told_and_not_its_command(tried, code, output, told):
    error = RuntimeError("C++ compile error")
    error.__cause__ = subprocess.CalledProcessError(code, ["/usr/bin/g++", "-O3", "-x" * 500], output)
    tried(error=error)
    with pytest.raises(ConfigError, match=rf"fails on rank 0: g\+\+ ended with {code}: {told}"):
        settle_compilation(config("always"), TwoRanks())


@pytest.mark.parametrize("wanted", ["auto", "always"])
@pytest.mark.parametrize("other", [[None, "g++ ended with -15: it said nothing", "SIGTERM", 0.1], None])
def test_a_signal_that_ends_the_compilers_too_stops_the_run_and_is_no_lack_of_a_compiler(tried, wanted, other):
    tried(gpu=True, error=None if other else RuntimeError("g++"))
    stopping = (lambda: None) if other else (lambda: "SIGTERM")
    settled = settle_compilation(config(wanted), TwoRanks(other), stopping=stopping)
    assert settled.told == "nothing: SIGTERM has ended the compilers"
    assert not settled.is_on


@pytest.mark.parametrize(("wanted", "lines"), [("always", 1), ("never", 0)])
def test_rank_0_says_what_it_is_about_before_a_silence(tried, wanted, lines):
    tried()
    ranks, said = TwoRanks(), []
    settle_compilation(config(wanted), ranks, say=said.append)
    ranks.rank = 1
    settle_compilation(config(wanted), ranks, say=said.append)
    assert said == ["compiling norms and GELU, unless an earlier start has"] * lines


def test_a_signal_that_the_compilers_outlive_changes_nothing(tried):
    tried(gpu=True)
    assert settle_compilation(config("auto"), TwoRanks(), stopping=lambda: "SIGTERM").is_on


@pytest.mark.parametrize("wanted", ["auto", "always", "never"])
def test_a_directory_that_torch_cannot_make_is_refused_whatever_is_compiled(tried, monkeypatch, wanted):
    def refuse():
        raise ConfigError("TORCHINDUCTOR_CACHE_DIR: torch cannot")

    tried()
    monkeypatch.setattr(compilation, "see_that_torch_has_one", refuse)
    with pytest.raises(ConfigError, match=r"^rank 0: TORCHINDUCTOR_CACHE_DIR: torch cannot$"):
        settle_compilation(config(wanted), TwoRanks())


def test_apex_keeps_its_norms(tried):
    asked = tried(gpu=True, apex=True)
    settled = settle_compilation(config("auto"), TwoRanks())
    assert asked == [False]
    assert settled.told.startswith("bias + GELU; the norms are apex's; torch.compile took")


@pytest.mark.parametrize("wanted", ["auto", "always"])
def test_an_apex_that_one_rank_lacks_is_refused_on_all(tried, wanted):
    tried(gpu=True)
    with pytest.raises(ConfigError, match=r"^rank 1: train\.fused_norm: apex, but$"):
        settle_compilation(config(wanted), TwoRanks(["train.fused_norm: apex, but", None, None, 0.1]))


def test_programs_are_not_loaded_from_where_another_user_may_have_put_them(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch sets it for the whole process
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = Path(default_cache_dir())
    assert place.parent == tmp_path
    place.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=f"PermissionError: '{place}' belongs to another user; set TORCHINDUCTOR"):
        settle_compilation(config("always"), TwoRanks())


def test_without_a_compiler_the_error_is_the_compilers(monkeypatch, compiled_programs):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled_programs))
    torch.compiler.reset()
    with (
        torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.raises(ConfigError, match=r"rank 0: InvalidCxxCompiler: .*'no-such-compiler'"),
    ):
        settle_compilation(config("always"), TwoRanks())
    torch.compiler.reset()
