"""Damaged checkpoints are refused in one line, whoever damaged them: nothing crashes, hangs or is half read."""

import hashlib
import json

import pytest
import torch
from hypothesis import given

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.format import FINGERPRINTS, KINDS, MANIFEST, PARAMETERS, STATE, part_name
from megatron_glm.checkpoint.manifest import _signature
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.cli import main
from megatron_glm.errors import CheckpointError
from tests.damage import damaged, damaged_tree, to_json
from tests.fuzzing import bounded, fuzz, fuzz_test, replaced

PART = part_name(0, 0)


@pytest.fixture(scope="module")
def whole(checkpoints, tmp_path_factory):
    """A checkpoint with the state of a training run, in two files of values."""
    state = {
        "saved_at": "2026-01-01T00:00:00+00:00",
        "progress": {"step": 1, "samples": 8, "tokens": 100, "skipped": 0, "skip_samples": [[2, 3]]},
        "layout": {"data": 2, "pipeline": 1, "tensor": 1, "zero_stage": 1},
        "config": {"train": {"steps": 9}, "model": {"num_layers": 1, "hidden_size": 4, "num_attention_heads": 2}},
        "num_ids": 50,
        "tokenizer_hash": "00ff",
        "validation": {"step": 1, "loss": 2.5, "losses": {"token": 2.5}},
        "versions": {"torch": "2"},
        "seed": 1,
    }
    return checkpoints.save(tmp_path_factory.mktemp("whole"), 1, state=state, part_bytes=200)


def signed_anew(path, changed):
    """The changed files, and the manifest of someone who wants them to be believed."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    for name, content in changed.items():
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return changed | {MANIFEST: signed(manifest)}


def signed(manifest):
    manifest.pop("sha256", None)
    return to_json(manifest | {"sha256": _signature(json.loads(to_json(manifest)))})


def values_of(reader):
    return {(name, kind): reader.read(name, kind) for name in reader.shapes for kind in KINDS}


def same_values(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[key], others[key]) for key in some)


def commands_end_well(path, capsys):
    """Each command of checkpoints ends with 0 or an error of one line."""
    for arguments in (["inspect-checkpoint", path], ["inspect-checkpoint", path.parent], ["verify-checkpoint", path]):
        code = main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        assert code in (0, 2)
        assert told.err.count("\n") <= 1
        assert "\x1b" not in told.out + told.err
        assert "Traceback" not in told.err


@fuzz_test
@pytest.mark.parametrize("name", [MANIFEST, PARAMETERS, STATE, FINGERPRINTS, PART, "tokenizer/tokenizer.model"])
def test_a_damaged_file_is_noticed_by_fuzz(whole, capsys, name, examples):
    original = (whole / name).read_bytes()
    truth = values_of(CheckpointReader(whole))

    @fuzz(examples // 6)  # of each of the six files
    @given(content=damaged(original))
    def holds(content):
        with replaced(whole, {name: content}) as path, bounded():
            try:
                reader = CheckpointReader(path)
                assert same_values(values_of(reader), truth)
                assert content == original or name == MANIFEST  # whose signature is of its meaning, not of its spaces
                assert scan_checkpoints(path.parent, hashes=True).newest == path
            except CheckpointError:
                assert content != original
                assert scan_checkpoints(path.parent, hashes=True).newest is None
            commands_end_well(path, capsys)

    holds()


@fuzz_test
@pytest.mark.parametrize("name", [PARAMETERS, STATE, FINGERPRINTS, PART])
def test_a_damaged_file_that_is_signed_anew_is_refused_or_read_whole_by_fuzz(whole, capsys, name, examples):
    original = (whole / name).read_bytes()
    damage = damaged(original)
    if name != PART:
        damage |= damaged_tree(json.loads(original)).map(to_json)

    @fuzz(examples)
    @given(content=damage)
    def holds(content):
        with replaced(whole, signed_anew(whole, {name: content})) as path, bounded():
            try:
                reader = CheckpointReader(path)
                values = values_of(reader)
                assert all(len(values[name, kind]) == torch.Size(reader.shapes[name]).numel() for name, kind in values)
                reader.fingerprints()
            except CheckpointError:
                pass
            commands_end_well(path, capsys)

    holds()


@fuzz_test
def test_a_manifest_that_is_signed_anew_is_refused_or_true_by_fuzz(whole, capsys, examples):
    truth = values_of(CheckpointReader(whole))

    @fuzz(examples)
    @given(tree=damaged_tree(json.loads((whole / MANIFEST).read_bytes())))
    def holds(tree):
        content = signed(tree) if isinstance(tree, dict) else to_json(tree)
        with replaced(whole, {MANIFEST: content}) as path, bounded():
            try:
                reader = CheckpointReader(path)
                assert isinstance(reader.run_id, str)
                assert isinstance(reader.step, int)
                assert reader.step >= 0
                assert same_values(values_of(reader), truth)
                reader.attachments()
            except CheckpointError:
                pass
            commands_end_well(path, capsys)

    holds()
