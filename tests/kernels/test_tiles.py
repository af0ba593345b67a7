"""The tables of tiles: the nearest architecture, what a machine's own file changes, and what is wrong with a file."""

import json

import pytest
import torch

from glm_kernels.tiles import VARIABLE, Tile, architecture, find_tile, read_tiles, trying, write_tiles

OLD, NEW, OWN = (Tile({"BLOCK_M": size, "BLOCK_N": 64}, 4, 3) for size in (16, 32, 128))
TABLE = {"sm_80": {"forward": OLD}, "sm_90": {"forward": NEW}}


@pytest.mark.parametrize(
    ("device", "tile"),
    [("sm_75", OLD), ("sm_80", OLD), ("sm_89", OLD), ("sm_90", NEW), ("sm_100", NEW), ("sm_120", NEW)],
)
def test_an_architecture_without_a_table_takes_the_newest_that_is_not_newer(device, tile):
    assert find_tile(TABLE, "forward", device) is tile


def test_a_machines_own_file_counts_for_the_architecture_it_names(tmp_path, monkeypatch):
    path = tmp_path / "tiles.json"
    path.write_text(write_tiles({"sm_89": {"forward": OWN}}))
    monkeypatch.setenv(VARIABLE, str(path))
    assert find_tile(TABLE, "forward", "sm_89") == OWN
    assert find_tile(TABLE, "forward", "sm_80") is OLD
    monkeypatch.delenv(VARIABLE)
    assert find_tile(TABLE, "forward", "sm_89") is OLD
    assert find_tile(TABLE, "forward", "sm_89", overrides=path) == OWN


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "tiles.json"
    path.write_text(write_tiles(TABLE))
    assert read_tiles(path) == TABLE
    assert json.loads(path.read_text())["sm_90"]["forward"] == NEW.launch()


SIZES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no table of kernel tiles"),
        ("[]", "no table of kernel tiles"),
        ('{"sm_90": {"forward": 3}}', r"sm_90.forward: .* \(.*\); write one with|sm_90.forward"),
        (json.dumps({"sm_90": {"forward": {**SIZES, "BLOCK_M": 48}}}), "sm_90.forward: BLOCK_M: 48 is not a power"),
        (json.dumps({"sm_90": {"forward": {**SIZES, "BLOCK_M": "64"}}}), "BLOCK_M: '64' is not a power of two"),
        (json.dumps({"sm_90": {"forward": {**SIZES, "num_warps": 0}}}), "num_warps: 0 is not a power of two"),
        (json.dumps({"sm_90": {"forward": {**SIZES, "num_stages": 9}}}), "num_stages: 9 is not in 1..8"),
        (json.dumps({"sm_90": {"forward": {"BLOCK_M": 64}}}), "sm_90.forward: 'num_warps' is missing"),
        (
            json.dumps({"sm_90": {"forward": {**SIZES, "BLOCK_K": 64}}}),
            r"has \['BLOCK_K', 'BLOCK_M', 'BLOCK_N'\], want",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(content, message, tmp_path):
    path = tmp_path / "tiles.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        find_tile(TABLE, "forward", "sm_90", overrides=path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.json: no table of kernel tiles .*python -m glm_kernels.tune"):
        find_tile(TABLE, "forward", "sm_90", overrides=tmp_path / "absent.json")


def test_tiles_on_trial_are_taken_until_the_trial_ends():
    with trying({"forward": OWN}):
        assert find_tile(TABLE, "forward", "sm_90") is OWN
        with trying({"forward": OLD}):
            assert find_tile(TABLE, "forward", "sm_90") is OLD
        assert find_tile(TABLE, "forward", "sm_90") is OWN
    assert find_tile(TABLE, "forward", "sm_90") is NEW
    with pytest.raises(ValueError, match="BLOCK: 0"), trying({"forward": OWN}):
        Tile({"BLOCK": 0}, 4, 1)
    assert find_tile(TABLE, "forward", "sm_90") is NEW


def test_the_interpreter_has_the_tiles_of_the_oldest_architecture():
    assert architecture(torch.device("cpu")) == "sm_80"
