"""A dry run foresees what the run gives, and a full disk before it is full."""

import gzip
import shutil

import pyarrow
import pyarrow.parquet
import pytest

import data_tools.estimate
from data_tools.estimate import estimate
from data_tools.inputs import open_inputs
from data_tools.preprocess import Request, dry_run, main, preprocess
from data_tools.units import plan_units
from megatron_glm.errors import DataError
from megatron_glm.tokenizer.loading import load_tokenizer

OPTIONS = {"held_out": 0.1, "shard_tokens": 3000}
UNIT_BYTES = 40_000


@pytest.fixture
def request_of(tmp_path, prose, tokenizer_directory):
    """A request over a plain and a compressed file, 500 kB of text in all."""
    plain = prose(tmp_path / "a.txt", 1500, seed=1)
    text = prose(tmp_path / "b.txt", 600, seed=2).read_text().replace("\n\n", "\0").replace("\n", " ")
    lines = "".join(f'{{"text": "{document}"}}\n' for document in text.split("\0"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))

    def make(**changes):
        given = {"inputs": [str(plain), str(tmp_path / "b.jsonl.gz")], "tokenizer": str(tokenizer_directory)}
        return Request(
            output=tmp_path / "out", **(given | OPTIONS | {"unit_bytes": UNIT_BYTES, "workers": 1} | changes)
        )

    return make


def estimate_of(request):
    inputs = open_inputs(request.inputs, line_documents=False)
    units = len(plan_units(inputs, UNIT_BYTES))
    return estimate(inputs, load_tokenizer(request.tokenizer), request.options, units=units)


def written(request):
    manifest = preprocess(request).manifest
    splits = (manifest.splits.train, manifest.splits.held_out)
    size = sum(path.stat().st_size for path in request.output.rglob("*") if path.is_file())
    return [sum(s.documents for s in splits), sum(s.tokens for s in splits), sum(len(s.shards) for s in splits), size]


def test_a_small_corpus_is_read_whole_and_known_exactly(request_of):
    expected = estimate_of(request_of())
    documents, tokens, shards, size = written(request_of())
    assert (expected.documents, expected.tokens) == (documents, tokens)
    assert expected.shards == pytest.approx(shards, rel=0.2)
    assert size == pytest.approx(expected.disk_bytes, rel=0.1)


def test_the_last_documents_of_every_file_are_counted(tmp_path, request_of):
    # Their bytes are read before they are: the last paragraph, and the rest of a block of short documents.
    (tmp_path / "open.txt").write_text("one of many\n\n" * 50_000 + "the last, without a blank line")
    short = "".join(f'{{"text": "a {number}"}}\n' for number in range(9000))
    (tmp_path / "short.jsonl").write_text(short)
    (tmp_path / "short.jsonl.gz").write_bytes(gzip.compress(short.encode(), mtime=0))
    pyarrow.parquet.write_table(
        pyarrow.table({"text": [f"a {number}" for number in range(9000)]}), tmp_path / "short.parquet"
    )
    for name, documents in [("open.txt", 50_001)] + [
        (f"short.{kind}", 9000) for kind in ("jsonl", "jsonl.gz", "parquet")
    ]:
        assert estimate_of(request_of(inputs=[str(tmp_path / name)])).documents == documents, name


def test_short_documents_at_the_places_of_a_sample_are_all_counted(tmp_path, request_of, monkeypatch):
    monkeypatch.setattr(data_tools.estimate, "_SPOTS", 2)
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n' * 60_000)
    expected = estimate_of(request_of(inputs=[str(tmp_path / "lines.jsonl")]))
    assert expected.sample.documents > 30_000
    assert expected.documents == pytest.approx(60_000, rel=0.01)


@pytest.mark.parametrize("changes", [{"sentences": True}, {"min_tokens": 40}, {"malformed": "skip"}])
def test_what_options_drop_and_add_is_foreseen(tmp_path, request_of, changes):
    with open(tmp_path / "a.txt", "ab") as stream:
        stream.write(b"" if "malformed" not in changes else b"\n\nspo\xffilt")
    request = request_of(**changes)
    expected = estimate_of(request)
    documents, tokens, _, size = written(request)
    assert (expected.documents, expected.tokens) == (documents, tokens)
    assert size == pytest.approx(expected.disk_bytes, rel=0.1)


def test_a_sample_of_a_plain_corpus_foresees_the_whole(request_of, monkeypatch):
    monkeypatch.setattr(data_tools.estimate, "_SPOTS", 10)
    monkeypatch.setattr(data_tools.estimate, "_SPOT_BYTES", 4000)
    request = request_of(inputs=request_of().inputs[:1])
    expected = estimate_of(request)
    assert 30_000 < expected.sample.input_bytes < 50_000 < expected.input_bytes / 4
    documents, tokens, _, size = written(request)
    assert documents == pytest.approx(expected.documents, rel=0.1)
    assert tokens == pytest.approx(expected.tokens, rel=0.1)
    assert size == pytest.approx(expected.disk_bytes, rel=0.1)


def test_a_compressed_file_is_sampled_from_its_beginning(request_of, monkeypatch):
    monkeypatch.setattr(data_tools.estimate, "_SPOTS", 2)
    monkeypatch.setattr(data_tools.estimate, "_SPOT_BYTES", 100)
    expected = estimate_of(request_of(inputs=request_of().inputs[1:]))
    assert 0 < expected.sample.documents <= expected.documents == pytest.approx(600, rel=0.3)


def test_a_columnar_file_is_sampled_by_some_of_its_row_groups(tmp_path, prose, request_of, monkeypatch):
    monkeypatch.setattr(data_tools.estimate, "_SPOTS", 5)
    monkeypatch.setattr(data_tools.estimate, "_SPOT_BYTES", 1000)
    texts = prose(tmp_path / "c.txt", 1500, seed=3).read_text().split("\n\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "c.parquet", row_group_size=60)
    expected = estimate_of(request_of(inputs=[str(tmp_path / "c.parquet")]))
    assert 60 * 3 <= expected.sample.documents <= 60 * 6
    assert expected.documents == pytest.approx(1500, rel=0.15)


def test_the_command_prints_the_estimate_and_writes_nothing(tmp_path, request_of, tokenizer_directory, capsys):
    inputs = request_of().inputs
    arguments = ["--input", *inputs, "--tokenizer", str(tokenizer_directory), "--output", str(tmp_path / "new" / "out")]
    before = sorted(tmp_path.iterdir())
    assert main([*arguments, "--dry-run", "--workers", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sample", "documents", "tokens", "shards", "disk", "time"]
    assert "2,100 documents" in lines[0]
    assert lines[0].endswith(" MB of input, all of it")
    assert lines[1] == "documents  about 2,100"
    assert "uint16" in lines[2]
    assert "for 3 processes" in lines[5]
    assert sorted(tmp_path.iterdir()) == before
    assert main([*arguments, "--dry-run", "--workers", "3", "--dedupe", "exact"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "documents  about 2,100, duplicates still counted"


def test_a_full_disk_is_foreseen_before_the_start(tmp_path, request_of, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"--output: '.*out' needs about \d+ kB, its disk has 100 kB; free"):
        preprocess(request_of())
    assert not list(tmp_path.glob("*out*"))
    with pytest.raises(DataError, match="needs about"):
        list(dry_run(request_of()))


def test_what_an_interrupted_run_has_written_counts_as_there(tmp_path, request_of, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "shard").write_bytes(bytes(1_000_000))
    preprocess(request_of(restart=True))
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_broken_document_in_the_sample_is_told(tmp_path, request_of):
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:1: 'text' must be a string"):
        list(dry_run(request_of(inputs=[str(tmp_path / "bad.jsonl")])))
