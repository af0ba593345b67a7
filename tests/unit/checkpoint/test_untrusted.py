"""Checkpoints of strangers: names that lead elsewhere, sizes that nobody has, entries of other types."""

import hashlib
import json

import pytest
import torch

from megatron_glm.checkpoint.manifest import Manifest, read_manifest
from megatron_glm.checkpoint.original import read_original
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.retention import Retention, remove_expendable
from megatron_glm.checkpoint.training_state import check_state
from megatron_glm.cli import main
from megatron_glm.errors import CheckpointError
from tests.fuzzing import bounded


def written_anew(path, name, change):
    """A JSON file of a checkpoint with a change, and a manifest that believes it."""
    content = json.loads((path / name).read_bytes())
    change(content)
    text = json.dumps(content).encode()
    (path / name).write_bytes(text)
    manifest = read_manifest(path)
    record = type(manifest.files[name])(len(text), hashlib.sha256(text).hexdigest())
    signed = Manifest(manifest.run_id, manifest.step, {**manifest.files, name: record})
    (path / "manifest.json").write_bytes(signed.to_json())


@pytest.mark.parametrize("name", ["../x", "/etc/hostname", "a/../../x", "..", ".", "a\\b", "a\0"])
def test_a_manifest_names_no_file_outside_its_directory(checkpoints, tmp_path, name):
    path = checkpoints.save(tmp_path, 1)
    manifest = read_manifest(path)
    record = manifest.files["state.json"]
    (path / "manifest.json").write_bytes(Manifest("run", 1, {**manifest.files, name: record}).to_json())
    with pytest.raises(CheckpointError, match="no file of a checkpoint"):
        CheckpointReader(path)


def test_a_link_is_followed_and_must_lead_to_what_was_saved(checkpoints, tmp_path):
    # As caches of downloads hold them: each file a link to one that is named by its hash.
    path = checkpoints.save(tmp_path, 1)
    part = path / "rank_00000_000.safetensors"
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    assert checkpoints.holds(CheckpointReader(path), 1)
    (tmp_path / "elsewhere").write_bytes(bytes(part.stat().st_size))
    with pytest.raises(CheckpointError, match="was changed"):
        CheckpointReader(path)


def test_sizes_that_the_files_cannot_hold_are_told_before_memory_is_asked_for(checkpoints, tmp_path):
    path = checkpoints.save(tmp_path, 1)

    def grow(content):
        entry = content["parameters"]["b.bias"]
        entry["shape"] = [10**15]
        for fragment in entry["fragments"]:
            fragment["length"] = 10**15

    written_anew(path, "parameters.json", grow)
    told = r"parameters\.json: wants \d+ bytes of .rank_\d+_\d+\.safetensors., which has \d+"
    with bounded(), pytest.raises(CheckpointError, match=told):
        CheckpointReader(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["parameters"]["b.bias"]["fragments"][0].update(kind=["weight"]), "expected a string"),
        (lambda c: c["parameters"]["b.bias"]["fragments"][0].update(start=1.5), "expected a whole number"),
        (lambda c: c["parameters"]["b.bias"]["fragments"][0].update(rows=7, stride=0), "no part of 7 elements"),
        (lambda c: c["parameters"]["b.bias"]["fragments"][0].update(file="../a"), "not in the manifest"),
        (lambda c: c["parameters"]["b.bias"].update(shape=[2**40, 2**40]), "impossible shape"),
        (lambda c: c.update(parameters=[]), "not a list of parameters"),
    ],
)
def test_a_list_of_parameters_that_makes_no_sense_is_one_line(checkpoints, tmp_path, change, message):
    path = checkpoints.save(tmp_path, 1)
    written_anew(path, "parameters.json", change)
    with pytest.raises(CheckpointError, match=message):
        CheckpointReader(path)
    assert main(["inspect-checkpoint", str(path)]) == 2
    assert main(["verify-checkpoint", str(path)]) == 2


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("progress", {"step": "2"}, r"progress\.step: Input should be a valid integer"),
        ("progress", {"step": 2, "epoch": 1}, r"progress\.epoch: Extra inputs are not permitted"),
        ("config", [], r"config: Input should be"),
        ("validation", {"losses": {"token": "low"}}, r"validation\.losses\.token"),
        ("mishaps", {"losses": []}, r"mishaps\.phase: Field required"),
        ("steering", {"overrides": {"learning_rate": -1}}, r"steering\.overrides\.learning_rate"),
        ("stages", [[0, 2], [3, 4]], r"stages \[\[0, 2\], \[3, 4\]\] are no division of layers"),
        ("source_lengths", [-1], r"source_lengths\.0"),
    ],
)
def test_a_state_with_a_wrong_entry_is_one_line_that_names_it(checkpoints, tmp_path, capsys, entry, value, message):
    path = checkpoints.save(tmp_path, 1, state={entry: value})
    with pytest.raises(CheckpointError, match=message):
        check_state(CheckpointReader(path).state, path)
    assert main(["inspect-checkpoint", str(path)]) == 2
    assert "NO: " in capsys.readouterr().out


def test_a_state_that_lacks_what_is_needed_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=r"state\.json: lacks 'config'"):
        check_state({"progress": {}}, tmp_path, needs=("progress", "config"))


@pytest.mark.parametrize(
    "module",
    [
        {"transformer.layers.999999999999.mlp.dense_4h_to_h.bias": torch.zeros(1)},
        {3: torch.zeros(1)},
        {"word_embeddings.weight": torch.zeros(2, 2).to_sparse()},
        {"word_embeddings.weight": torch.zeros(2, dtype=torch.int32)},
        {"word_embeddings.weight": [1]},
    ],
)
def test_a_file_of_the_original_that_makes_no_sense_is_one_line(tmp_path, module):
    torch.save({"module": module}, tmp_path / "a.pt")
    with bounded(), pytest.raises(CheckpointError):
        read_original(tmp_path / "a.pt")


def test_an_old_checkpoint_that_is_a_link_goes_without_what_it_leads_to(checkpoints, tmp_path):
    kept = checkpoints.save(tmp_path / "elsewhere", 1)
    for step in (2, 3):
        checkpoints.save(tmp_path / "runs", step)
    (tmp_path / "runs" / kept.name).symlink_to(kept)
    assert remove_expendable(tmp_path / "runs", run_id="run", retention=Retention(last=2))
    assert not (tmp_path / "runs" / kept.name).is_symlink()
    assert (kept / "manifest.json").is_file()
