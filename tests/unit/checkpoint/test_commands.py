"""`glm inspect-checkpoint` and `glm verify-checkpoint`: what they tell of whole and of damaged checkpoints."""

import json

import pytest

from megatron_glm.checkpoint.manifest import read_manifest
from megatron_glm.cli import main
from megatron_glm.files import sha256_of

STATE = {
    "saved_at": "2026-11-30T03:00:00+00:00",
    "progress": {"step": 2, "samples": 1600, "tokens": 51234, "skipped": 0},
    "layout": {"data": 4, "pipeline": 2, "tensor": 1, "zero_stage": 1},
    "config": {
        "train": {"steps": 200},
        "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4},
    },
    "tokenizer_hash": "0123456789abcdef",
    "num_ids": 300,
    "validation": {"step": 2, "loss": 2.5, "losses": {"token": 2.25, "document": 3.0}},
    "versions": {"torch": "2.13.0"},
    "seed": 2,
}


@pytest.fixture
def saved(checkpoints, tmp_path):
    """The output of a run with a checkpoint of step 2."""
    checkpoints.save(tmp_path / "checkpoints", 2, state=STATE)
    return tmp_path


def lines(capsys):
    return dict(line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/step_00000002"])
def test_inspect_tells_what_when_and_how_good(saved, capsys, place):
    assert main(["inspect-checkpoint", str(saved / place)]) == 0
    size = sum(record.size for record in read_manifest(saved / "checkpoints/step_00000002").files.values())
    assert lines(capsys) == {
        "checkpoint": str(saved / "checkpoints" / "step_00000002"),
        "run": "run",
        "saved": "2026-11-30T03:00:00+00:00",
        "step": "2 of 200",
        "seen": "1,600 samples, 51,234 tokens",
        "layout": "data 4 × pipeline 2 × tensor 1, ZeRO 1",
        "loss": "2.500 (token 2.250, document 3.000), validation at step 2",
        "model": "2 layers × 32, 4 heads, 4 parameters, 23 weights",
        "tokenizer": "300 ids, hash 0123456789ab",
        "versions": "torch 2.13.0",
        "size": f"{size / 1000:.3g} kB in 5 files",
        "whole": "names and sizes agree; glm verify-checkpoint reads the contents",
    }


def test_inspect_tells_all_of_a_directory_a_line_each(saved, checkpoints, capsys):
    checkpoints.save(saved / "checkpoints", 1)
    assert main(["inspect-checkpoint", str(saved)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step_00000001  saved at a time that was not recorded  loss none: no validation yet  size ")
    assert second.startswith("step_00000002  saved 2026-11-30T03:00:00+00:00  loss 2.500 (token 2.250")
    assert second.endswith("sizes agree")


@pytest.mark.parametrize("name", ["rank_00000_000.safetensors", "state.json", "parameters.json"])
def test_inspect_tells_what_is_missing_and_all_that_is_left(saved, capsys, name):
    (saved / "checkpoints/step_00000002" / name).unlink()
    assert main(["inspect-checkpoint", str(saved)]) == 2
    told = lines(capsys)
    assert told["whole"] == f"NO: {saved}/checkpoints/step_00000002/{name} is missing"
    assert told["run"] == "run"


def test_inspect_names_the_damaged_of_several(saved, checkpoints, capsys):
    checkpoints.save(saved / "checkpoints", 1)
    (saved / "checkpoints/step_00000001/manifest.json").write_text("{")
    assert main(["inspect-checkpoint", str(saved)]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert "step_00000001  NOT WHOLE: " in first
    assert "manifest.json: not a checkpoint's manifest" in first
    assert second.endswith("sizes agree")


@pytest.mark.parametrize("command", ["inspect-checkpoint", "verify-checkpoint"])
def test_a_place_without_checkpoints_is_one_clear_line(tmp_path, capsys, command):
    assert main([command, str(tmp_path)]) == 2
    expected = f"error: {tmp_path}: no checkpoint there (expected step_00001000 or a directory of such)\n"
    assert capsys.readouterr().err == expected


def test_verify_reads_every_checkpoint_and_ends_with_0(saved, checkpoints, capsys):
    checkpoints.save(saved / "checkpoints", 1)
    assert main(["verify-checkpoint", str(saved)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "step_00000001: whole: 5 files with " in first
    assert second.endswith("12 fingerprints")


def test_verify_names_a_flipped_bit_and_reads_the_others_too(saved, checkpoints, capsys):
    checkpoints.save(saved / "checkpoints", 3)
    part = saved / "checkpoints/step_00000002/rank_00000_000.safetensors"
    data = bytearray(part.read_bytes())
    data[-3] ^= 4
    part.write_bytes(data)
    assert main(["verify-checkpoint", str(saved)]) == 2
    captured = capsys.readouterr()
    assert "step_00000002: DAMAGED" in captured.out
    assert "step_00000003: whole" in captured.out
    assert captured.err.startswith("error: 1 of 2 checkpoints damaged: step_00000002: ")
    assert f"{part} was changed" in captured.err


def test_verify_finds_values_that_are_not_those_that_were_saved_though_all_files_are(saved, capsys):
    # As a writer with a defect would leave it: the manifest is right about a wrong file.
    path = saved / "checkpoints/step_00000002"
    content = json.loads((path / "fingerprints.json").read_text())
    content["fingerprints"]["b.bias/exp_avg"] = "00000000000000ff"
    (path / "fingerprints.json").write_text(json.dumps(content, indent=1))
    manifest = read_manifest(path)
    record = type(manifest.files["fingerprints.json"])(
        (path / "fingerprints.json").stat().st_size, sha256_of(path / "fingerprints.json")
    )
    signed = type(manifest)(manifest.run_id, manifest.step, {**manifest.files, "fingerprints.json": record})
    (path / "manifest.json").write_bytes(signed.to_json())
    assert main(["verify-checkpoint", str(path)]) == 2
    assert "the values of 'b.bias/exp_avg' are not those that were saved" in capsys.readouterr().err
