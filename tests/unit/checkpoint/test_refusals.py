"""What save_checkpoint refuses, and that refusing leaves nothing behind."""

import pytest
import torch

from megatron_glm.checkpoint.discovery import find_checkpoint
from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.errors import CheckpointError

SHAPES = {"w": (10,)}


def pieces(*ranges, kinds=KINDS, name="w"):
    return [Fragment(name, kind, start, torch.zeros(stop - start)) for kind in kinds for start, stop in ranges]


def columns(*ranges, stride=5):
    """Columns of two rows."""
    return [
        Fragment("w", kind, start, torch.zeros(2 * (stop - start)), 2, stride)
        for kind in KINDS
        for start, stop in ranges
    ]


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        (pieces((0, 4), (5, 10)), r"w \(weight\): elements 4\.\.5 of 10 are held by no rank"),
        (pieces((0, 9)), r"w \(weight\): elements 9\.\.10 of 10 are held by no rank"),
        (pieces((0, 6), (5, 10)), r"w \(weight\): element 5 is in rank_00000_000.* and again in rank_00000_000"),
        (pieces((0, 10), (0, 10)), r"w \(weight\): element 0 is in .* and again"),
        (pieces((0, 11)), r"holds elements 0\.\.11 of 10"),
        (pieces((-1, 10)), r"holds elements -1\.\.10 of 10"),
        (pieces((0, 10), kinds=KINDS[:2]), r"w \(exp_avg_sq\): elements 0\.\.10 of 10 are held by no rank"),
        (pieces((0, 10)) + pieces((0, 1), name="v"), r"'v' \(weight\) is no parameter of the model"),
        ([Fragment("w", "weight", 0, torch.zeros(10, dtype=torch.bfloat16))], "bfloat16.*must be fp32"),
        ([Fragment("w", "weight", 0, torch.zeros(2, 5))], r"must be fp32 \[n\]"),
        (columns((0, 2), (3, 5)), r"w \(weight\): elements 2\.\.3 of 10 are held by no rank"),
        (columns((0, 3), (2, 5)), r"w \(weight\): element 2 is in .* and again"),
        (columns((0, 5))[:1] + pieces((5, 10)), r"w \(weight\): element 5 is in .* and again"),
        (columns((0, 2)) + pieces((2, 5), (8, 10)), r"elements 7\.\.8 of 10 are held by no rank"),
        (columns((0, 3), stride=4), r"as 2 rows 4 apart, which is no part of 10 elements"),
        (columns((3, 6)), r"as 2 rows 5 apart, which is no part of 10 elements|holds elements 3\.\.11 of 10"),
    ],
)
def test_fragments_must_cover_every_parameter_exactly_once(checkpoints, tmp_path, fragments, message):
    with pytest.raises(CheckpointError, match=message):
        checkpoints.save(tmp_path, 1, fragments=fragments, shapes=SHAPES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\\b", "state.json", "rank_00000_000.safetensors"]
)
def test_attachments_stay_inside_the_checkpoint_and_off_its_own_files(checkpoints, tmp_path, name):
    with pytest.raises(CheckpointError, match="not saved"):
        checkpoints.save(tmp_path / "runs", 1, attachments={name: b""})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("state", [{"loss": float("nan")}, {"model": object()}])
def test_a_state_that_json_cannot_hold_is_refused(checkpoints, tmp_path, state):
    with pytest.raises(CheckpointError, match=r"state\.json: the state cannot be written"):
        checkpoints.save(tmp_path, 1, state=state)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_a_file_is_refused(checkpoints, tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(CheckpointError, match=r"rank 0: .*runs: Not a directory"):
        checkpoints.save(tmp_path / "runs", 1)


def test_a_failing_rank_is_named_on_every_rank_and_the_older_checkpoint_stays(checkpoints, tmp_path):
    checkpoints.save(tmp_path, 1)

    def failing():
        yield checkpoints.whole_fragments(checkpoints.make_values(2))[0]
        raise MemoryError("no room for a copy")

    def save(ranks):
        fragments = failing() if ranks.rank == 2 else []
        return checkpoints.save(tmp_path, 2, fragments=fragments, ranks=ranks)

    errors = checkpoints.run_threads(3, save)
    assert [type(error) for error in errors] == [CheckpointError] * 3
    assert len({str(error) for error in errors}) == 1
    assert "rank 2: MemoryError: no room for a copy" in str(errors[0])
    assert isinstance(errors[2].__cause__, MemoryError)
    assert find_checkpoint(tmp_path).name == "step_00000001"
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
