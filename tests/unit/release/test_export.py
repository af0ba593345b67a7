"""The arguments of `glm export`."""

import pytest

from megatron_glm.cli import main
from megatron_glm.release import export


def run(tmp_path, *options):
    return main(["export", "--checkpoint", str(tmp_path / "none"), "--output", str(tmp_path / "release"), *options])


def test_says_what_to_install_where_transformers_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert run(tmp_path) == 2
    assert "pip install -c constraints.txt -e '.[release]', or give --no-verify" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["5", "GB", "0GB", "-1GB", "1.5GB", "5TB", ""])
def test_refuses_what_is_no_size(tmp_path, capsys, size):
    assert run(tmp_path, f"--max-shard-size={size}") == 2
    assert f"--max-shard-size: {size!r} is not a size; write it as 500MB or 5GB" in capsys.readouterr().err


def test_refuses_a_directory_without_a_checkpoint(tmp_path, capsys):
    assert run(tmp_path, "--no-verify") == 2
    assert f"--checkpoint: {tmp_path / 'none'}: no whole checkpoint there (expected step_" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_output_of_a_run_stands_for_its_checkpoints(tmp_path, capsys):
    damaged = tmp_path / "none" / "checkpoints" / "step_00000001"
    damaged.mkdir(parents=True)
    assert run(tmp_path, "--no-verify") == 2
    assert f"no whole checkpoint there (expected step_00001000 or a directory of such); {damaged}: " in (
        capsys.readouterr().err
    )
