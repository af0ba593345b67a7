"""A document, and a training sample's documents, are shown with their text and the place they came from."""

import json

import numpy as np
import pytest

from data_tools.inspect import main
from data_tools.preprocess import main as preprocess
from megatron_glm.config.loading import load_config
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.manifest import read_manifest
from megatron_glm.data.provenance import document_origin
from megatron_glm.data.shards import ShardSet
from megatron_glm.tokenizer.loading import load_tokenizer

CONFIG = """
model: {{num_layers: 1, hidden_size: 8, num_attention_heads: 1, max_positions: 256}}
tokenizer: {{path: {tokenizer}}}
data: {{sources: [{source}], window: 200}}
objective: {{token: 0.5, document: 0.5}}
optimizer: {{learning_rate: 1.0e-4}}
train: {{output: runs, steps: 1, global_batch_size: 1, micro_batch_size: 1, seed: 3}}
"""


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(5)
    words = ["the", "old", "river", "walked", "slowly", "stone", "water", "mountain"]
    return [f"{k} " + " ".join(draw.choice(words, draw.integers(5, 60))) for k in range(80)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, texts, tokenizer_directory):
    """Two inputs, a JSON lines file and a text file, preprocessed into small shards; their directory."""
    folder = tmp_path_factory.mktemp("inspected")
    with open(folder / "a.jsonl", "w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in texts[:50])
    (folder / "b.txt").write_text("\n\n".join(texts[50:]), encoding="utf-8")
    argv = ["--input", str(folder / "a.jsonl"), str(folder / "b.txt"), "--tokenizer", str(tokenizer_directory)]
    argv += ["--output", str(folder / "data"), "--held-out", "0.2", "--workers", "1", "--shard-tokens", "900"]
    assert preprocess(argv) == 0
    return folder


@pytest.fixture
def inspect(capsys):
    def run(*argv):
        code = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def text_at(path, unit, place):
    assert unit == "byte"
    rest = path.read_bytes()[place:]
    return json.loads(rest.split(b"\n")[0])["text"] if path.suffix == ".jsonl" else rest.split(b"\n\n")[0].decode()


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_document_is_shown_with_the_place_its_text_stands_at(inspect, corpus, texts, tokenizer_directory, split):
    manifest = read_manifest(corpus / "data")
    shards = ShardSet(corpus / "data", split)
    for document in {0, 1, shards.num_documents // 2, shards.num_documents - 1}:
        options = ["--document", document, "--split", split, "--tokenizer", tokenizer_directory]
        code, out, err = inspect(corpus / "data", *options)
        assert (code, err) == (0, "")
        head, origin, ids, blank, *text = out.splitlines()
        tokens = shards.tokens(shards.document_start(document), shards.document_start(document + 1))
        shard, place = shards.locate_document(document)
        assert head == (
            f"document {document} · {corpus / 'data' / split / f'{shard:05d}'}, document {place} there · "
            f"{len(tokens)} tokens"
        )
        assert ids == f"ids: {' '.join(map(str, tokens.tolist()))}"
        assert blank == ""
        found = document_origin(corpus / "data", manifest, split, document)
        assert origin == f"origin: {found.path}, byte {found.place}"
        written = text_at(corpus / found.path.rsplit("/", 1)[-1], found.unit, found.place)
        assert written in texts
        assert "\n".join(text).startswith(written)


def test_a_document_of_a_foreign_pair_is_named_by_its_pair_and_number(inspect, corpus, tokenizer_directory):
    prefix = corpus / "data" / "train" / "00001"
    code, out, err = inspect("--document", 2, "--tokenizer", tokenizer_directory, "--prefix", prefix)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(f"document 2 · {prefix}, document 2 there · ")
    assert out.splitlines()[1] == f"origin: {prefix}, document 2; nothing else is known of an existing pair"


@pytest.mark.parametrize("kind", ["path", "prefixes"])
def test_the_documents_of_a_sample_are_shown_with_their_origins(inspect, corpus, texts, tokenizer_directory, kind):
    source = f"{{path: {corpus / 'data'}}}"
    if kind == "prefixes":
        source = f"{{prefixes: ['{corpus / 'data' / 'train' / '*'}']}}"
    config = corpus / f"{kind}.yaml"
    config.write_text(CONFIG.format(tokenizer=tokenizer_directory, source=source), encoding="utf-8")
    tokenizer = load_tokenizer(tokenizer_directory)
    dataset = SampleDataset.open(load_config(config), tokenizer)
    shards = ShardSet(corpus / "data", "train")
    manifest = read_manifest(corpus / "data")
    for index in range(12):
        code, out, err = inspect("--sample", index, "--config", config)
        assert (code, err) == (0, "")
        assert out.startswith(f"sample {index} · ")
        origin, _ = dataset.trace(index)
        holders = [shards.find_document(token) for token in stored_tokens(shards, origin)]
        lines = out.splitlines()
        heads = [line for line in lines if line.startswith("piece ")]
        shown = [int(line.split(": document ")[1].split(" ·")[0]) for line in heads]
        assert shown == sorted(set(shown))
        assert set(holders) <= set(shown)
        origins = [line.removeprefix("origin: ") for line in lines if line.startswith("origin: ")]
        assert len(origins) == len(shown)
        if kind == "path":
            expected = [document_origin(corpus / "data", manifest, "train", k) for k in shown]
            assert origins == [f"{o.path}, byte {o.place}" for o in expected]
        else:
            assert all("nothing else is known" in line for line in origins)


def stored_tokens(shards, origin):
    """The stored tokens of a window: its places less the [CLS] of each document before them."""
    starts = [shards.document_start(k) + k for k in range(shards.num_documents)]
    for place in range(origin.start, origin.stop):
        document = int(np.searchsorted(starts, place, side="right")) - 1
        if place > starts[document]:
            yield place - document - 1


def test_settings_of_the_command_line_reach_the_sample(inspect, corpus, tokenizer_directory):
    config = corpus / "overridden.yaml"
    config.write_text(
        CONFIG.format(tokenizer=tokenizer_directory, source=f"{{path: {corpus / 'data'}}}"), encoding="utf-8"
    )
    sample = ["--sample", 1, "--config", config]
    for objective in ("token", "document"):
        other = "document" if objective == "token" else "token"
        out = inspect(*sample, f"objective.{objective}=1", f"objective.{other}=0")[1]
        assert out.startswith(f"sample 1 · {objective} objective")


def test_a_sample_of_a_later_phase_is_shown_from_its_own_source(inspect, corpus, tokenizer_directory):
    config = corpus / "phases.yaml"
    config.write_text(
        CONFIG.format(tokenizer=tokenizer_directory, source=f"{{path: {corpus / 'data'}}}"), encoding="utf-8"
    )
    pair = corpus / "data" / "held_out" / "00000"
    phases = f"data.phases=[{{from_sample: 2, sources: [{{prefixes: ['{pair}']}}]}}]"
    shown = 0
    for index in range(6):
        code, out, err = inspect("--sample", index, "--config", config, phases)
        assert (code, err) == (0, "")
        origins = [line for line in out.splitlines() if line.startswith("origin: ")]
        assert all((str(pair) in origin) == (index >= 2) for origin in origins)
        shown += index >= 2 and bool(origins)  # the first window of an epoch may be empty
    assert shown >= 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{data}", "--document", 3], "--document: needs --tokenizer"),
        (["--document", 3, "--tokenizer", "{tokenizer}"], "--document: give one data directory, or --prefix"),
        (["{data}", "{data}", "--document", 3, "--tokenizer", "{tokenizer}"], "--document: give one data directory"),
        (["{data}", "--document", 3000, "--tokenizer", "{tokenizer}"], "--document: 3000 is none of the"),
        (["{data}", "--document", "-1", "--tokenizer", "{tokenizer}"], "--document: -1 is none of the"),
        (["nowhere", "--document", 0, "--tokenizer", "{tokenizer}"], "no shards in 'nowhere'"),
        (["{data}", "--document", 0, "--tokenizer", "nowhere"], "nowhere"),
        (["--prefix", "no*", "--document", 0, "--tokenizer", "{tokenizer}"], "--prefix: 'no*': no .idx file"),
        (["--sample", 3], "--sample: needs --config"),
        (["--sample", "-3", "--config", "x.yaml"], "there is no sample -3"),
    ],
)
def test_mistakes_are_told_in_one_line(inspect, corpus, tokenizer_directory, argv, message):
    places = {"data": corpus / "data", "tokenizer": tokenizer_directory}
    code, out, err = inspect(*(str(argument).format(**places) for argument in argv))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
