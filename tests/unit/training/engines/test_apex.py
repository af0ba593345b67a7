"""NVIDIA's apex is told from the PyPI package of that name, without running the latter."""

import sys

import pytest

from megatron_glm.errors import ConfigError
from megatron_glm.training.engines.apex import nvidia_apex


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts a package `apex` with these parts on the path; `code` is its first file."""
    monkeypatch.delitem(sys.modules, "apex", raising=False)

    def install(*parts, code=""):
        for part in ("", *parts):
            (tmp_path / "apex" / part).mkdir()
            (tmp_path / "apex" / part / "__init__.py").write_text(code if not part else "")
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("apex", None)


def test_nvidia_s_is_imported(installed):
    installed("normalization", "optimizers", code="here = 1")
    assert nvidia_apex().here == 1


def test_the_one_of_pypi_is_refused_with_the_fix_and_not_run(installed):
    installed("lib", code="raise SystemExit('ran')")
    with pytest.raises(ConfigError, match=r"is not NVIDIA's .* run `pip uninstall apex`"):
        nvidia_apex()
    assert "apex" not in sys.modules


def test_none_is_no_mistake(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "apex", raising=False)
    assert nvidia_apex() is None
