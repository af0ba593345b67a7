"""What becomes of documents that are not as they should be: counted by reason, and lost to no one."""

import base64
import gzip
import json
from pathlib import Path

import pytest

from data_tools.preprocess import Request, main, preprocess
from data_tools.verify import problems
from megatron_glm.data.manifest import SPLITS, read_manifest
from megatron_glm.data.provenance import document_origin
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError
from megatron_glm.tokenizer.loading import load_tokenizer

GOOD = [f"document {number} of the old river" for number in range(90)]
BAD = [b'{"text": 3}', b'{"text": "a\xff"}', b"{broken", b"[]", b'{"other": "x"}']


def json_line(text):
    return json.dumps({"text": text}).encode()


def content_of(path):
    content = Path(path).read_bytes()
    return gzip.decompress(content) if path.endswith(".gz") else content


@pytest.fixture
def inputs(tmp_path):
    """A plain and a compressed file, each with a malformed line after every ninth good one."""
    paths = []
    for name, texts in (("a.jsonl", GOOD[:45]), ("b.jsonl.gz", GOOD[45:])):
        lines = []
        for number, text in enumerate(texts):
            lines.append(json_line(text))
            if number % 9 == 8:
                lines.append(BAD[number // 9])
        content = b"\n".join(lines) + b"\n"
        (tmp_path / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith("gz") else content)
        paths.append(str(tmp_path / name))
    return paths


@pytest.fixture
def run(tmp_path, inputs, tokenizer_directory):
    """Preprocess into `tmp_path/<name>`."""

    def run(name="data", **options):
        given = {"inputs": inputs, "held_out": 0.1, "workers": 1, "unit_bytes": 500, "shard_tokens": 300}
        given |= {"malformed": "skip"} | options
        preprocess(Request(tokenizer=str(tokenizer_directory), output=tmp_path / name, **given))
        return tmp_path / name

    return run


def test_a_malformed_document_ends_the_run_by_default(tmp_path, inputs, tokenizer_directory, run):
    with pytest.raises(DataError, match=r"a\.jsonl:10: 'text' must be a string"):
        run(malformed="fail")
    assert not (tmp_path / "data").exists()


def test_malformed_documents_are_skipped_and_counted_by_reason(run):
    directory = run()
    for record in read_manifest(directory).inputs:
        assert (record.documents_in, record.documents_out) == (50, 45)
        assert sum(record.dropped.values()) == 5
        assert all(reason.startswith("malformed: ") and number == 1 for reason, number in record.dropped.items())
    assert not (directory / "quarantine.jsonl").exists()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_quarantine_holds_what_could_not_be_read_in_order(run, inputs, workers):
    directory = run(malformed="quarantine", workers=workers)
    lines = [json.loads(line) for line in (directory / "quarantine.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == [path for path in inputs for _ in range(5)]
    raw = [base64.b64decode(line["base64"]) if "base64" in line else line["text"].encode() for line in lines]
    assert raw == BAD * 2
    assert [sorted(line.keys() - {"path", "byte", "reason"}) for line in lines[1:3]] == [["base64"], ["text"]]
    for line, bad in zip(lines, BAD * 2, strict=True):
        assert content_of(line["path"])[line["byte"] :].startswith(bad)
    manifest = read_manifest(directory)
    assert manifest.quarantine.documents == 10
    assert list(problems(directory, full=True)) == []
    (directory / "quarantine.jsonl").write_bytes(b"x" * manifest.quarantine.bytes)
    assert list(problems(directory, full=False)) == []
    assert "quarantine.jsonl: SHA-256" in next(iter(problems(directory, full=True)))


def test_no_quarantine_is_written_where_all_can_be_read(tmp_path, run, prose):
    directory = run(inputs=[str(prose(tmp_path / "good.txt", 30))], malformed="quarantine")
    assert read_manifest(directory).quarantine is None
    assert not (directory / "quarantine.jsonl").exists()


def test_documents_of_nothing_that_a_tokenizer_reads_are_dropped_and_counted(tmp_path, run):
    invisible = [*GOOD, "\u200b\ufeff", " \n\t\u3000", ""]
    (tmp_path / "c.jsonl").write_bytes(b"\n".join(map(json_line, invisible)))
    directory = run(inputs=[str(tmp_path / "c.jsonl")])
    assert read_manifest(directory).inputs[0].dropped == {"empty": 2, "no tokens": 1}
    assert sum(ShardSet(directory, split).num_documents for split in SPLITS) == len(GOOD)


def test_documents_with_too_few_tokens_are_dropped_and_counted(tmp_path, run, tokenizer_directory):
    tokenizer = load_tokenizer(tokenizer_directory)
    texts = ["the river", *GOOD, "of", "", "the old stone in the water"]
    (tmp_path / "c.jsonl").write_bytes(b"\n".join(map(json_line, texts)))
    least = len(tokenizer.encode("the old stone in the water"))
    directory = run(inputs=[str(tmp_path / "c.jsonl")], min_tokens=least)
    long = [text for text in texts if len(tokenizer.encode(text)) >= least]
    assert 0 < len(long) < len(texts)
    (record,) = read_manifest(directory).inputs
    assert record.documents_out == len(long)
    assert record.dropped == {"empty": 1, "too short": len(texts) - len(long) - 1}


def test_every_document_is_found_again_at_its_origin(run, inputs, tokenizer_directory):
    directory, tokenizer = run(), load_tokenizer(tokenizer_directory)
    manifest, places = read_manifest(directory), set()
    content = {path: content_of(path) for path in inputs}
    for split in SPLITS:
        shards = ShardSet(directory, split)
        for document in range(shards.num_documents):
            text = tokenizer.decode(
                shards.tokens(shards.document_start(document), shards.document_start(document + 1) - 1)
            )
            origin = document_origin(directory, manifest, split, document)
            assert origin.unit == "byte"
            assert content[origin.path][origin.place :].startswith(json_line(text) + b"\n")
            places.add((origin.path, origin.place))
    assert len(places) == len(GOOD)


@pytest.mark.parametrize("damage", [lambda content: content[:-8], lambda content: content[8:] + content[:8]])
def test_damaged_origins_are_named(run, damage):
    directory = run()
    path = directory / "train" / "00001.origins"
    assert len(path.read_bytes()) > 8
    path.write_bytes(damage(path.read_bytes()))
    assert ShardSet(directory, "train").num_documents > 0  # training does not look at them
    found = list(problems(directory, full=True))
    assert len(found) == 1
    assert "00001.origins: " in found[0]


def test_the_command_takes_the_options_and_names_the_quarantine(tmp_path, inputs, tokenizer_directory, capsys):
    arguments = ["--input", *inputs, "--tokenizer", str(tokenizer_directory), "--output", str(tmp_path / "data")]
    arguments += ["--malformed", "quarantine", "--dedupe", "exact", "--min-tokens", "2", "--workers", "1"]
    assert main([*arguments, "--dry-run"]) == 0
    assert main(arguments) == 0
    output, errors = capsys.readouterr()
    assert "warning: 10 documents cannot be read, see quarantine.jsonl" in errors
    assert "dropped: 2 malformed: " in output
    options = read_manifest(tmp_path / "data").options
    assert (options.malformed, options.dedupe, options.min_tokens) == ("quarantine", "exact", 2)
