"""The tuner of the tiles, as far as a CPU can tell: what it tries, what it chooses, and what it says without a GPU."""

from importlib import import_module

import pytest

from glm_kernels.tiles import Tile, find_tile, trying
from glm_kernels.tune import main
from glm_kernels.tuning import PACKAGES, Problem, Workload, all_problems, combinations, fastest

TINY = Workload(tokens=48, targets=3, hidden=8, words=40, heads=1, segment=16, long_segment=32)


def test_every_entry_of_every_table_is_tuned():
    tuned = [problem.entry for problem in all_problems(TINY)]
    tables = [import_module(f"glm_kernels.{package}.tiles").TILES for package in PACKAGES]
    assert sorted(tuned) == sorted(entry for table in tables for entry in table["sm_90"])
    assert all(table["sm_80"].keys() == table["sm_90"].keys() for table in tables)


def test_the_table_is_among_the_candidates_sizes():
    for problem in all_problems(TINY):
        for architecture in ("sm_80", "sm_90"):
            tile = find_tile(problem.table, problem.entry, architecture)
            assert any(candidate.blocks.keys() == tile.blocks.keys() for candidate in problem.candidates)


class UnfitError(Exception):
    """What a launch raises in place of a GPU that a tile does not fit."""


@pytest.mark.parametrize("problem", list(all_problems(TINY)), ids=lambda problem: problem.entry)
def test_the_work_of_an_entry_launches_its_kernel_with_the_tile_on_trial(problem):
    run = problem.make("cpu")
    run()
    with trying({problem.entry: Tile({"NO_SUCH_SIZE": 16}, 4, 1)}), pytest.raises((TypeError, KeyError)):
        run()


def problem_of(table: Tile, *candidates: Tile) -> Problem:
    def make(device):
        return lambda: find_tile({"sm_80": {"entry": table}}, "entry", "sm_80")

    return Problem("entry", {"sm_80": {"entry": table}}, candidates, make)


def clock(milliseconds):
    """Measures a call that returns a tile by its first size; what has no time does not fit."""

    def measure(run):
        size = run().blocks["BLOCK"]
        if size not in milliseconds:
            raise UnfitError
        return milliseconds[size]

    return measure


TILES = {size: Tile({"BLOCK": size}, 4, 1) for size in (16, 32, 64, 128)}


@pytest.mark.parametrize(
    ("milliseconds", "size"),
    [
        ({16: 1.0, 32: 0.5, 64: 0.7, 128: 0.9}, 32),
        ({16: 1.0, 32: 2.0, 64: 0.7}, 64),  # 128 does not fit
        ({16: 1.0, 32: 0.995, 64: 1.5, 128: 2.0}, 16),  # no gain but noise
        ({32: 3.0}, 32),  # the table's own does not fit
    ],
)
def test_the_fastest_tile_that_fits_is_chosen_and_the_tables_kept_within_the_noise(milliseconds, size):
    problem = problem_of(TILES[16], *(TILES[size] for size in (32, 64, 128)))
    choice = fastest(problem, architecture="sm_80", device="cpu", measure=clock(milliseconds), too_large=UnfitError)
    assert choice.tile == TILES[size]
    assert choice.milliseconds == milliseconds[size]
    assert choice.tables_milliseconds == milliseconds.get(16, float("inf"))


def test_combinations_are_all_of_them():
    tiles = combinations({"BLOCK_M": (16, 32), "BLOCK_N": (64,)}, num_warps=(4, 8), num_stages=(1, 2, 3))
    assert len({tile.label() for tile in tiles}) == 12
    assert tiles[0] == Tile({"BLOCK_M": 16, "BLOCK_N": 64}, 4, 1)


def test_a_dry_run_lists_the_candidates_and_writes_nothing(tmp_path, capsys):
    assert main(["--dry-run", "--entries", "loss_*", "--output", str(tmp_path / "tiles.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == ["loss_statistics", "loss_gradient"]
    assert "4096 w8 s1" in lines[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "tiles.json"], "no GPU: tiles are measured on the one that they are for"),
        ([], "--output: missing; the JSON file to write"),
        (["--dry-run", "--entries", "nothing"], "--entries: 'nothing' is the pattern of none of attention_forward_d64"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
