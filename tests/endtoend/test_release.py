"""A release: made from a checkpoint alone, proven equal to the model, whole or not there."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_glm.cli import main
from megatron_glm.errors import CheckpointError
from megatron_glm.generation.text import fill
from megatron_glm.release.loading import load_release
from megatron_glm.release.publishing import TEMPLATES, publish_release
from megatron_glm.release.weights import INDEX
from megatron_glm.tokenizer.published import bert_uncased


def export(checkpoint: Path, output: Path, *options: str) -> int:
    return main(["export", "--checkpoint", str(checkpoint), "--output", str(output), *options])


@pytest.fixture(scope="session")
def release(saved, tmp_path_factory):
    """A verified release; its name is no module name, as any user's may be."""
    output = tmp_path_factory.mktemp("release") / "tiny-1.0"
    assert export(saved.path, output) == 0
    return output


def load_in_transformers(transformers, directory: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()


def tiny_wordpiece(directory: Path, size: int):
    """A tokenizer of exactly `size` ids."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "."]
    pieces += [f"word{number}" for number in range(size - len(pieces) - 4)]  # four special tokens follow
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return bert_uncased(directory / "vocab.txt")


def test_everyone_may_read_a_release(release):
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in release.iterdir())


def test_a_release_holds_the_checkpoint_bit_for_bit(release, saved, tokenizer):
    model, read_tokenizer = load_release(release)
    for name, parameter in saved.model.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    assert read_tokenizer.content_hash == tokenizer.content_hash
    assert not model.training


def test_transformers_fills_blanks_as_we_do(release, transformers):
    model, tokenizer = load_release(release)
    theirs = load_in_transformers(transformers, release)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(release, trust_remote_code=True)
    for text in ("the [MASK] sat on the [MASK].", "[sMASK] the red dog", "the old cat [MASK] and [gMASK]"):
        ours = fill(model, tokenizer, text, max_tokens=12)
        assert theirs.fill(their_tokenizer, text, max_new_tokens=12) == ours.text


@pytest.fixture
def fond_of_no_text(tmp_path, tiny_model, save_model):
    """A release of a model that likes best, in this order: [UNK], [SEP], the roles, and then ordinary words."""
    tokenizer = tiny_wordpiece(tmp_path, 40)
    model = tiny_model(tokenizer.vocab_size)
    never = torch.tensor(tokenizer.never_generated())
    assert sum(never) > len(tokenizer.special.by_role())
    with torch.no_grad():
        model.transformer.final_layernorm.weight.zero_()
        model.transformer.final_layernorm.bias.fill_(1)
        words = model.word_embeddings.weight
        words[: len(never)] = torch.arange(len(never), 0, -1)[:, None] / len(never)
        words[: len(never)][never] += 1
    assert export(save_model(tmp_path, model, tokenizer), tmp_path / "release", "--no-verify") == 0
    return tmp_path / "release"


def test_what_stands_for_no_text_is_not_filled_in_by_either_side(fond_of_no_text, transformers):
    model, tokenizer = load_release(fond_of_no_text)
    theirs = load_in_transformers(transformers, fond_of_no_text)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(fond_of_no_text, trust_remote_code=True)
    for text in ("the [MASK] sat.", "the cat [gMASK]"):
        ours = fill(model, tokenizer, text, max_tokens=3)
        assert theirs.fill(their_tokenizer, text, max_new_tokens=3) == ours.text
        assert "[" not in ours.text


def test_what_is_never_generated_outlives_saving_by_transformers(fond_of_no_text, tmp_path, transformers):
    suppressed = json.loads((fond_of_no_text / "generation_config.json").read_text())["suppress_tokens"]
    tokenizer = load_release(fond_of_no_text)[1]
    assert {*suppressed, tokenizer.special.end_of_piece} == set(tokenizer.never_generated().nonzero()[0].tolist())
    assert tokenizer.special.end_of_piece not in suppressed
    load_in_transformers(transformers, fond_of_no_text).save_pretrained(tmp_path / "again")
    again = load_in_transformers(transformers, tmp_path / "again")
    assert again.generation_config.suppress_tokens == suppressed


def test_generate_of_transformers_says_what_to_call(release, transformers):
    with pytest.raises(NotImplementedError, match=r"call fill\(tokenizer, text\)"):
        load_in_transformers(transformers, release).generate(torch.tensor([[1, 2]]))


def test_lora_targets_of_the_card_are_all_linear_layers_of_both_models(release, saved, transformers):
    guide = Path(__file__).parents[2] / "docs" / "release.md"
    targets, documented = (
        set(json.loads(re.search(r"target_modules=(\[.*?\])", page.read_text())[1]))
        for page in (release / "README.md", guide)
    )
    assert targets == documented
    theirs = load_in_transformers(transformers, release)
    for model in (theirs, saved.model):
        # PEFT takes a target for the last part of a module's name.
        modules = [(name.rpartition(".")[2], module) for name, module in model.named_modules()]
        assert {name for name, module in modules if isinstance(module, torch.nn.Linear)} == targets
        assert all(isinstance(module, torch.nn.Linear) for name, module in modules if name in targets)


def test_fill_stays_within_the_positions_of_the_model(release, transformers):
    theirs = load_in_transformers(transformers, release)
    tokenizer = transformers.AutoTokenizer.from_pretrained(release, trust_remote_code=True)
    assert theirs.fill(tokenizer, "the [MASK] sat", max_new_tokens=10_000)
    with pytest.raises(ValueError, match=r"the text has \d+ tokens, the model reads \d+; shorten it"):
        theirs.fill(tokenizer, "the cat sat " * 50 + "[MASK]")


def test_the_model_of_transformers_learns_from_labels(release, transformers):
    model = load_in_transformers(transformers, release)
    labels = torch.tensor([[-100, -100, 7, 8]])
    inputs = {"input_ids": torch.tensor([[1, 2, 3, 7]]), "position_ids": torch.tensor([[[0, 1, 1, 1], [0, 0, 1, 2]]])}
    output = model(**inputs, attention_mask=torch.tensor([2]), labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits[0, 2:], labels[0, 2:])
    assert torch.equal(output.loss, expected)
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"position_ids": None}, "GLM needs position_ids"), ({"attention_mask": torch.ones(1, 4)}, r"has shape \[1, 4\]")],
)
def test_the_model_of_transformers_says_what_it_needs(release, transformers, changes, message):
    model = load_in_transformers(transformers, release)
    inputs = {
        "input_ids": torch.tensor([[1, 2, 3, 7]]),
        "position_ids": torch.zeros(1, 2, 4, dtype=torch.int64),
        "attention_mask": torch.tensor([2]),
    }
    with pytest.raises(ValueError, match=message):
        model(**inputs | changes)


@pytest.mark.golden
def test_the_original_logits_come_out_of_a_release(shared, tmp_path, tiny_model, save_model, transformers, capsys):
    golden = load_file(shared("golden/glm_reference_tiny.safetensors"))
    tokenizer = tiny_wordpiece(tmp_path, 160)
    model = tiny_model(160, num_layers=3, hidden_size=64, max_positions=48, vocab_size=160)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(golden[f"param.{name}"])
    assert export(save_model(tmp_path, model, tokenizer), tmp_path / "release") == 0
    verified = re.search(r"largest logit difference (\S+)", capsys.readouterr().out)
    assert float(verified[1]) <= 1e-5

    released = load_in_transformers(transformers, tmp_path / "release")
    with torch.inference_mode():
        logits = released(
            golden["in.input_ids"], position_ids=golden["in.position_ids"], attention_mask=golden["in.sep"]
        ).logits
    for sample, length in enumerate(golden["in.lengths"].tolist()):
        assert (logits[sample, :length] - golden["out.logits"][sample, :length]).abs().max() <= 1e-5


def test_code_with_another_gelu_does_not_pass_the_verification(saved, tmp_path):
    templates = shutil.copytree(TEMPLATES, tmp_path / "templates")
    code = (templates / "modeling_glm.py").read_text()
    assert ', approximate="tanh"' in code
    (templates / "modeling_glm.py").write_text(code.replace(', approximate="tanh"', ""))
    with pytest.raises(CheckpointError, match="gives other logits in transformers than the model"):
        publish_release(
            saved.path,
            tmp_path / "release",
            dtype="fp32",
            max_shard_bytes=10**9,
            verify=True,
            say=print,
            templates=templates,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["templates"]


@pytest.mark.parametrize("name", ["model.safetensors", "modeling_glm.py", "config.json", "manifest.json"])
def test_a_changed_or_missing_file_is_named(release, tmp_path, name):
    copy = shutil.copytree(release, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[-3] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        load_release(copy)
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_release(copy)


def test_an_output_that_is_not_empty_is_left_alone(saved, tmp_path, capsys):
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "notes.txt").write_text("mine")
    assert export(saved.path, tmp_path / "release", "--no-verify") == 2
    assert "exists and is not empty; choose another directory" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "release").iterdir()] == ["notes.txt"]


def test_an_output_that_cannot_be_written_is_one_line(saved, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert export(saved.path, tmp_path / "file" / "release", "--no-verify") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_directory_of_checkpoints_stands_for_its_newest(saved, tmp_path, capsys):
    assert export(saved.path.parent, tmp_path / "release", "--no-verify") == 0
    assert f"released step 7 of {saved.path} to {tmp_path / 'release'}" in capsys.readouterr().out


def test_split_weights_load_on_both_sides(saved, tmp_path, transformers):
    assert export(saved.path, tmp_path / "release", "--no-verify", "--max-shard-size", "40KB") == 0
    assert (tmp_path / "release" / INDEX).exists()
    model, _ = load_release(tmp_path / "release")
    theirs, loading = transformers.AutoModel.from_pretrained(
        tmp_path / "release", trust_remote_code=True, output_loading_info=True
    )
    assert not any(loading[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, parameter in saved.model.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
        assert torch.equal(theirs.get_parameter(name), parameter)


def test_bf16_weights_are_the_checkpoints_rounded_once(saved, tmp_path):
    assert export(saved.path, tmp_path / "release", "--no-verify", "--dtype", "bf16") == 0
    stored = load_file(tmp_path / "release" / "model.safetensors")
    for name, parameter in saved.model.named_parameters():
        assert torch.equal(stored[name], parameter.bfloat16())
    assert json.loads((tmp_path / "release" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_card_tells_data_objectives_progress_and_validation(release):
    card = (release / "README.md").read_text()
    for fact in ("corpora/tiny", "token 0.5, sentence 0, document 0.5", "| tokens | 1,234 |", "| 3.2500 |", "vLLM"):
        assert fact in card
    for name in ("model.safetensors", "modeling_glm.py"):
        assert json.loads((release / "manifest.json").read_text())["files"][name]["sha256"] in card


def test_a_checkpoint_given_for_a_release_is_told_so(saved, capsys):
    assert main(["generate", "--model", str(saved.path), "--text", "the [MASK] sat."]) == 2
    assert "is a checkpoint; make a release of it with glm export" in capsys.readouterr().err


def test_generate_prints_the_filled_text(release, capsys):
    options = ["--max-tokens", "6", "--temperature", "1", "--top-p", "0.9", "--seed", "2"]
    assert main(["generate", "--model", str(release), "--text", "the [MASK] sat.", *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("the")
    assert printed.endswith("sat.\n")
    assert "[MASK]" not in printed
