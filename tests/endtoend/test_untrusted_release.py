"""Releases of strangers: names that lead elsewhere, sizes that nobody has, any byte of them changed."""

import hashlib
import json
import shutil
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.cli import main
from megatron_glm.errors import CheckpointError, UserError
from megatron_glm.release.loading import load_release
from megatron_glm.release.weights import INDEX
from tests.damage import damaged, damaged_tree, to_json
from tests.fuzzing import bounded, fuzz, fuzz_test, replaced

MANIFEST = "manifest.json"
DESCRIPTIONS = ("config.json", "glm_tokenizer.json", INDEX)


@pytest.fixture(scope="module")
def release(tmp_path_factory, saved):
    """In several files of weights."""
    directory = tmp_path_factory.mktemp("release") / "model"
    arguments = ["--checkpoint", str(saved.path), "--output", str(directory), "--no-verify", "--max-shard-size", "50KB"]
    assert main(["export", *arguments]) == 0
    return directory


def believed(release, changed):
    """The changed files, and a manifest of what they are now."""
    manifest = json.loads((release / MANIFEST).read_bytes())
    for name, content in changed.items():
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return changed | {MANIFEST: to_json(manifest)}


def changed_json(release, name, change):
    content = json.loads((release / name).read_bytes())
    change(content)
    return believed(release, {name: to_json(content)})


@pytest.mark.parametrize("name", ["../stranger.safetensors", "/stranger.safetensors", "unlisted.safetensors", 5, ".."])
def test_an_index_names_no_file_that_the_manifest_does_not(release, tmp_path, name):
    shutil.copyfile(next(release.glob("*.safetensors")), release.parent / "stranger.safetensors")

    def lead_away(content):
        content["weight_map"]["word_embeddings.weight"] = name

    with (
        replaced(release, changed_json(release, INDEX, lead_away)),
        pytest.raises(CheckpointError, match=r"is no file that its manifest lists|not an index of weights"),
    ):
        load_release(release)


def test_a_file_that_the_manifest_does_not_list_is_not_read(release):
    manifest = json.loads((release / MANIFEST).read_bytes())
    del manifest["files"]["config.json"]
    with (
        replaced(release, {MANIFEST: to_json(manifest)}),
        pytest.raises(CheckpointError, match=r"its manifest lists no config\.json"),
    ):
        load_release(release)


@pytest.mark.parametrize(
    "sizes", [{"num_layers": 10**4}, {"hidden_size": 4 * 10**9}, {"max_positions": 10**12}, {"vocab_size": 10**12}]
)
def test_sizes_that_nobody_has_are_told_before_memory_is_asked_for(release, sizes):
    contents = changed_json(release, "config.json", lambda content: content.update(sizes))
    with replaced(release, contents), bounded(), pytest.raises(CheckpointError, match="its configuration asks for"):
        load_release(release)


@pytest.mark.parametrize("wrong", [{"num_layers": 10**12}, {"num_attention_heads": 0}, {"hidden_dropout": True}, {}])
def test_sizes_of_no_model_are_told_in_one_line(release, wrong):
    def change(content):
        content.update(wrong)
        if not wrong:
            del content["num_layers"]

    name = next(iter(wrong), "num_layers")
    with replaced(release, changed_json(release, "config.json", change)), pytest.raises(CheckpointError) as raised:
        load_release(release)
    told = str(raised.value)
    assert told.startswith(f"{release / 'config.json'}: not the sizes of a GLM: ")
    assert name in told
    assert "\n" not in told


@fuzz_test
def test_a_damaged_file_is_noticed_by_fuzz(release, examples):
    files = {path.name: path.read_bytes() for path in sorted(release.iterdir())}

    @fuzz(examples)
    @given(st.sampled_from(sorted(files)).flatmap(lambda name: st.tuples(st.just(name), damaged(files[name]))))
    def holds(damage):
        name, content = damage
        with replaced(release, {name: content}), bounded():
            try:
                load_release(release)
                assert content == files[name] or name == MANIFEST
            except UserError:
                assert content != files[name]

    holds()


@fuzz_test
def test_a_damaged_file_that_is_believed_is_refused_or_read_whole_by_fuzz(release, examples):
    weights = next(release.glob("*.safetensors"))
    trees = {name: json.loads((release / name).read_bytes()) for name in (*DESCRIPTIONS, MANIFEST)}
    changes = st.sampled_from(sorted(trees)).flatmap(
        lambda name: st.tuples(st.just(name), damaged_tree(trees[name]).map(to_json))
    )
    header = weights.read_bytes()

    @fuzz(examples)
    @given(changes | st.tuples(st.just(weights.name), damaged(header)))
    def holds(change):
        name, content = change
        contents = {name: content} if name == MANIFEST else believed(release, {name: content})
        with replaced(release, contents), bounded(), suppress(UserError):
            model, tokenizer = load_release(release)
            assert tokenizer.vocab_size == model.num_ids
            assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"

    holds()
