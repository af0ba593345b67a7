"""Code that is planted in place of any file of ours runs in none of the commands that read it.

The manifests are made anew around a planted file too: whoever can plant one can do that as well.
"""

import errno
import hashlib
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
import yaml

import data_tools.units
from data_tools import import_tokenizer, inspect, merge, preprocess, verify
from data_tools.split_writer import SplitWriter
from megatron_glm.checkpoint.manifest import Manifest, read_manifest
from megatron_glm.cli import main
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Overrides
from megatron_glm.errors import UserError
from megatron_glm.training.checkpoints.rewind_file import REWIND_FILE, kept_rewind
from megatron_glm.training.control.overrides import OverridesFile
from megatron_glm.training.control.stopping import END_FILE, read_end
from megatron_glm.training.reports.metrics import MetricsLog
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus
from tests.poison import poisons


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def release(tmp_path_factory, saved):
    directory = tmp_path_factory.mktemp("release") / "model"
    assert main(["export", "--checkpoint", str(saved.path), "--output", str(directory), "--no-verify"]) == 0
    return directory


@pytest.fixture
def planted(tmp_path):
    """The kinds of planted content; none may have run when the test is over."""
    flag = tmp_path / "it-ran"
    yield poisons(flag)
    assert not flag.exists()


def ends(run, *arguments):
    """A command ends as it does, with 0 or with an error of the user's; any other exception fails the test."""
    assert run([str(argument) for argument in arguments]) in (0, 2), arguments


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def replaced_one_by_one(directory, contents):
    """Each file with each content in turn, and whole again afterwards."""
    for path in files_of(directory):
        whole = path.read_bytes()
        for content in contents:
            path.write_bytes(content)
            yield path
        path.write_bytes(whole)


def signed_anew(directory):
    """The manifest of a checkpoint or a release, for what its files are now."""
    manifest = json.loads((directory / "manifest.json").read_bytes())
    for name in manifest["files"]:
        content = (directory / name).read_bytes()
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return manifest


def test_what_is_planted_would_run(tmp_path):
    kinds, flag = poisons(tmp_path / "it-ran"), tmp_path / "it-ran"
    readers = {
        "pickle": pickle.loads,
        "pickle in text": pickle.loads,
        "archive of torch": lambda content: torch.load(as_file(content), weights_only=False),
        "array of objects": lambda content: np.load(as_file(content), allow_pickle=True),
        "tagged YAML": yaml.unsafe_load,
        "tagged YAML in a section": yaml.unsafe_load,
        "Python": exec,
    }

    def as_file(content):
        (tmp_path / "planted").write_bytes(content)
        return tmp_path / "planted"

    assert readers.keys() == kinds.keys()
    for kind, read in readers.items():
        read(kinds[kind])
        assert flag.exists(), kind
        flag.unlink()


def test_in_a_data_directory(corpus, planted, tmp_path, capsys):
    data, tokenizer = shutil.copytree(corpus.root / "data", tmp_path / "data"), corpus.root / "tokenizer"
    for _ in replaced_one_by_one(data, planted.values()):
        ends(verify.main, data, "--full", "--tokenizer", tokenizer)
        ends(inspect.main, data, "--document", 1, "--tokenizer", tokenizer)
        ends(main, "show-sample", "--config", corpus.config, "--index", 3, f"data.sources.0.path={data}")
        ends(merge.main, data, "--output", tmp_path / "merged")
        for path in tmp_path.glob("merged*"):
            path.unlink()
    capsys.readouterr()


def test_in_a_tokenizer(corpus, planted, tmp_path, capsys):
    tokenizer = shutil.copytree(corpus.root / "tokenizer", tmp_path / "tokenizer")
    text = corpus.root / "text.txt"
    for path in replaced_one_by_one(tokenizer, planted.values()):
        description = tokenizer / "glm_tokenizer.json"
        if path != description:  # signed anew
            record = json.loads((corpus.root / "tokenizer" / "glm_tokenizer.json").read_bytes())
            record["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            description.write_text(json.dumps(record))
        ends(preprocess.main, "--input", text, "--tokenizer", tokenizer, "--output", tmp_path / "out", "--workers", 1)
        ends(verify.main, corpus.root / "data", "--tokenizer", tokenizer)
        ends(import_tokenizer.main, "--kind", "chinese", "--vocab", path, "--output", tmp_path / "imported")
    capsys.readouterr()


def test_in_the_units_of_an_interrupted_preprocess(corpus, planted, tmp_path, monkeypatch):
    monkeypatch.setattr(data_tools.units, "_BATCH_DOCUMENTS", 3)
    request = preprocess.Request(
        [str(corpus.root / "text.txt")],
        str(corpus.root / "tokenizer"),
        tmp_path / "out",
        held_out=0.1,
        workers=1,
        unit_bytes=40_000,
        dedupe="exact",
    )
    close, calls = SplitWriter.close, []

    def full(writer):
        calls.append(writer)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return close(writer)

    with monkeypatch.context() as patch:
        patch.setattr(SplitWriter, "close", full)
        with pytest.raises((UserError, OSError)):
            preprocess.preprocess(request)
    left = tmp_path / ".out.tmp"
    kept = shutil.copytree(left, tmp_path / "kept")
    names = [path.relative_to(kept) for path in files_of(kept)]
    assert {name.name for name in names} >= {"run.json", "result.json", "runs", "repeats"}
    for name in names:
        for content in (planted["pickle"], planted["archive of torch"]):
            shutil.rmtree(left, ignore_errors=True)
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            shutil.copytree(kept, left)
            (left / name).write_bytes(content)
            try:
                preprocess.preprocess(request)
                assert verify.main([str(tmp_path / "out"), "--full"]) == 0
            except UserError:
                pass


@pytest.mark.parametrize("believed", [False, True])
def test_in_a_checkpoint(saved, planted, tmp_path, capsys, believed):
    checkpoint = shutil.copytree(saved.path, tmp_path / saved.path.name)
    manifest = (checkpoint / "manifest.json").read_bytes()
    for path in replaced_one_by_one(checkpoint, planted.values()):
        if believed and path.name != "manifest.json":
            changed = signed_anew(checkpoint)
            records = {
                name: type(read_manifest(saved.path).files["state.json"])(**record)
                for name, record in changed["files"].items()
            }
            (checkpoint / "manifest.json").write_bytes(Manifest(changed["run_id"], changed["step"], records).to_json())
        ends(main, "inspect-checkpoint", checkpoint)
        ends(main, "verify-checkpoint", checkpoint)
        ends(main, "export", "--checkpoint", checkpoint, "--output", tmp_path / "release", "--no-verify")
        shutil.rmtree(tmp_path / "release", ignore_errors=True)
        if path.name != "manifest.json":
            (checkpoint / "manifest.json").write_bytes(manifest)
    capsys.readouterr()


@pytest.mark.parametrize("believed", [False, True])
def test_in_a_release(release, planted, tmp_path, capsys, believed):
    copy = shutil.copytree(release, tmp_path / "release")
    manifest = (copy / "manifest.json").read_bytes()
    for path in replaced_one_by_one(copy, planted.values()):
        if believed and path.name != "manifest.json":
            (copy / "manifest.json").write_text(json.dumps(signed_anew(copy)))
        ends(main, "generate", "--model", copy, "--text", "the [MASK] sat", "--max-tokens", 1)
        if path.name != "manifest.json":
            (copy / "manifest.json").write_bytes(manifest)
    capsys.readouterr()


def test_in_a_configuration_and_in_the_files_of_a_run(corpus, planted, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    for content in planted.values():
        config.write_bytes(content)
        ends(main, "show-sample", "--config", config, "--index", 0)
        ends(main, "doctor", "--config", config)
        with pytest.raises(UserError):
            config_from_tree({"train": content.decode(errors="replace")})
        for override in ("train.steps={}", "{}", "deepspeed.x={}"):
            text = override.format(content.decode(errors="replace")).replace("\0", "")
            ends(main, "show-sample", "--config", corpus.config, "--index", 0, text)
        for name in ("overrides.yaml", END_FILE, REWIND_FILE, "metrics.jsonl"):
            (tmp_path / name).write_bytes(content)
        refused = []
        assert OverridesFile(tmp_path, held=Overrides(), refused=refused.append).news() is None
        assert len(refused) == 1
        assert read_end(tmp_path) is None
        with pytest.raises(UserError):
            kept_rewind(tmp_path, run_id="run", step=0)
        MetricsLog(tmp_path / "metrics.jsonl", start_step=5).close()
        assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    capsys.readouterr()


@pytest.mark.distributed
def test_in_all_that_a_resume_reads_of_its_output(corpus, planted, tmp_path):
    settings = (
        "train.global_batch_size=4",
        "train.micro_batch_size=4",
        "train.eval_interval=10",
        "schedule.warmup_steps=0",
    )
    settings = (str(corpus.config), f"train.output={tmp_path / 'run'}", "checkpoint.save_interval=1", *settings)
    run_ranks(1, cases.train, *settings, "train.steps=2", "schedule.decay_steps=9")
    newest = tmp_path / "run" / "checkpoints" / "step_00000002"
    for path in files_of(newest):
        path.write_bytes(planted["archive of torch"])
    (newest / "manifest.json").write_bytes(planted["pickle"])
    (tmp_path / "run" / "overrides.yaml").write_bytes(planted["tagged YAML in a section"])
    for name in ("metrics.jsonl", "config.yaml", END_FILE, REWIND_FILE, "stop"):
        if name != "stop":  # whose content nobody reads
            (tmp_path / "run" / name).write_bytes(planted["pickle"])
    run_ranks(1, cases.train, *settings, "train.steps=3", "schedule.decay_steps=9")
    assert read_end(tmp_path / "run").step == 3
