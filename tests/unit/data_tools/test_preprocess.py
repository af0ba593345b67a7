"""From text to shards: complete, the same for any number of workers, and whole or not there."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import zstandard
from xxhash import xxh3_128_hexdigest

from data_tools.inputs import open_inputs
from data_tools.preprocess import Request, dry_run, main, preprocess
from data_tools.tokenizing import are_held_out, run_unit
from data_tools.units import Job, plan_units
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError
from megatron_glm.tokenizer.loading import load_tokenizer

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def build(tmp_path, tokenizer_directory):
    """Preprocess inputs into `tmp_path/<name>`; returns the directory."""

    def run(*inputs, name="data", **options):
        options = {"workers": 1, "tokenizer": str(tokenizer_directory), **options}
        preprocess(Request(inputs=[str(path) for path in inputs], output=tmp_path / name, **options))
        return tmp_path / name

    return run


@pytest.fixture
def decode(tokenizer_directory):
    """The documents of a split as text, each without its eos."""
    tokenizer = load_tokenizer(tokenizer_directory)

    def run(directory, split="train"):
        shards = ShardSet(directory, split)
        starts = [shards.document_start(k) for k in range(shards.num_documents + 1)]
        documents = [shards.tokens(start, stop) for start, stop in pairwise(starts)]
        assert all(ids[-1] == tokenizer.special.eos for ids in documents)
        return [tokenizer.decode(ids[:-1]) for ids in documents]

    return run


def tree(directory):
    """Every file below a directory, by name and content."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def manifest_of(directory):
    return json.loads((directory / "manifest.json").read_text())


def test_documents_come_out_in_order_each_with_its_eos(tmp_path, build, decode):
    (tmp_path / "a.txt").write_text("one stone\n\ntwo\nlines of water\n")
    (tmp_path / "b.jsonl").write_text('{"text": "three [MASK] <|endoftext|>"}\n')
    directory = build(tmp_path / "a.txt", tmp_path / "b.jsonl", held_out=0.0)
    found = decode(directory)
    assert [text.split() for text in found] == [["one", "stone"], ["two", "lines", "of", "water"], found[2].split()]
    assert found[2] == "three [MASK] <|endoftext|>"
    assert decode(directory, "held_out") == []


def test_every_format_gives_the_same_documents(tmp_path, build, decode):
    texts = [f"document {i} of the river" for i in range(20)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt"):
        assert decode(build(tmp_path / name, name=f"{name}-data", held_out=0.0)) == texts
    (tmp_path / "a.txt").write_text("\n".join(texts))
    assert decode(build(tmp_path / "a.txt", held_out=0.0, line_documents=True)) == texts


def test_output_is_the_same_for_any_number_of_workers(tmp_path, build, prose):
    prose(tmp_path / "a.txt", 300, seed=1)
    lines = "".join(json.dumps({"text": f"line {i} of the old mountain"}) + "\n" for i in range(200))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    inputs = (tmp_path / "a.txt", tmp_path / "b.jsonl.gz")
    options = {"held_out": 0.1, "unit_bytes": 9000}
    alone = tree(build(*inputs, name="alone", workers=1, **options))
    assert tree(build(*inputs, name="three", workers=3, **options)) == alone
    assert sum(name.startswith("train") for name in alone) > 10


def test_units_and_shards_cut_the_corpus_without_changing_it(tmp_path, build, decode, prose):
    path = prose(tmp_path / "a.txt", 60)
    whole = build(path, name="whole", held_out=0.1)
    assert len(manifest_of(whole)["splits"]["train"]["shards"]) == 1
    for options in ({"unit_bytes": 500}, {"shard_tokens": 100}, {"unit_bytes": 3000, "shard_tokens": 1}):
        parts = build(path, name=f"parts{options}", held_out=0.1, **options)
        assert len(manifest_of(parts)["splits"]["train"]["shards"]) > 5
        for split in ("train", "held_out"):
            assert decode(parts, split) == decode(whole, split)


def test_many_tiny_files_compressed_or_not_give_every_document_once(tmp_path, build, decode):
    for number in range(120):
        text = f"the river {number}"
        content = json.dumps({"text": text}).encode()
        path = tmp_path / f"{number:03d}.jsonl{'.gz' if number % 2 else ''}"
        path.write_bytes(gzip.compress(content) if number % 2 else content)
    directory = build(str(tmp_path / "*.jsonl*"), workers=3, held_out=0.1)
    texts = [*decode(directory), *decode(directory, "held_out")]
    assert sorted(texts) == sorted(f"the river {number}" for number in range(120))


def test_a_document_longer_than_a_shard_gets_its_own(tmp_path, build):
    (tmp_path / "a.txt").write_text("the\n\n" + "stone water " * 50 + "\n\nof\n\nin\n")
    shards = manifest_of(build(tmp_path / "a.txt", held_out=0.0, shard_tokens=12))["splits"]["train"]["shards"]
    assert [shard["documents"] for shard in shards] == [1, 1, 2]


def test_documents_stay_in_their_split_when_data_are_added(tmp_path, build, decode):
    texts = [f"document {i}" for i in range(400)]
    (tmp_path / "old.txt").write_text("\n\n".join(texts))
    (tmp_path / "new.txt").write_text("\n\n".join(f"new {i}" for i in range(100)))
    old = build(tmp_path / "old.txt", name="old", held_out=0.1)
    both = build(tmp_path / "new.txt", tmp_path / "old.txt", name="both", held_out=0.1)
    held = decode(old, "held_out")
    assert 20 <= len(held) <= 60
    assert sorted(held + decode(old)) == sorted(texts)
    assert [text for text in decode(both, "held_out") if text.startswith("document")] == held


def test_a_larger_share_holds_out_more_of_the_same():
    texts = [str(i).encode() for i in range(2000)]
    small, large = (are_held_out(texts, share) for share in (0.05, 0.2))
    assert not (small & ~large).any()
    assert small.sum() < large.sum()
    assert 60 <= small.sum() <= 140
    assert not are_held_out(texts, 0.0).any()
    assert are_held_out([b"29", b"30"], 0.05).tolist() == [False, True]  # data in use depend on it


def test_empty_documents_are_dropped_and_counted(tmp_path, build, decode):
    lines = [{"text": text} for text in ("", "one", " \n\t ", "two", "\u3000")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    directory = build(tmp_path / "a.jsonl", held_out=0.0)
    assert decode(directory) == ["one", "two"]
    (record,) = manifest_of(directory)["inputs"]
    assert (record["documents_in"], record["documents_out"], record["dropped"]) == (5, 2, {"empty": 3})


def test_the_manifest_says_what_went_in_and_what_came_out(tmp_path, build, prose, tokenizer_directory):
    path = prose(tmp_path / "a.txt", 40)
    directory = build(path, held_out=0.2, unit_bytes=2000)
    manifest, tokenizer = manifest_of(directory), load_tokenizer(tokenizer_directory)
    (record,) = manifest["inputs"]
    assert record["path"] == str(path)
    assert record["bytes"] == path.stat().st_size
    content, ends = path.read_bytes(), list(accumulate(part["bytes"] for part in record["parts"]))
    assert len(ends) > 1
    assert [part["xxh3_128"] for part in record["parts"]] == [
        xxh3_128_hexdigest(content[start:end]) for start, end in pairwise([0, *ends])
    ]
    assert manifest["tokenizer"]["hash"] == tokenizer.content_hash
    assert manifest["tokenizer"]["special"]["eos"] == tokenizer.special.eos
    for probe in manifest["tokenizer"]["probes"]:
        assert tokenizer.encode(probe["text"]).tolist() == probe["ids"]
    for split in ("train", "held_out"):
        for shard in manifest["splits"][split]["shards"]:
            for kind in ("bin", "idx", "origins"):
                content = (directory / split / f"{shard['name']}.{kind}").read_bytes()
                assert shard[f"{kind}_bytes"] == len(content)
                assert shard[f"{kind}_sha256"] == sha256(content).hexdigest()
    files = Counter(path.suffix for path in directory.rglob("*") if path.is_file())
    shards = sum(len(manifest["splits"][split]["shards"]) for split in ("train", "held_out"))
    assert files == {".json": 1, ".bin": shards, ".idx": shards, ".origins": shards}


def test_ids_outside_the_vocabulary_are_refused_on_write(tmp_path, build, monkeypatch):
    from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer

    encode = SentencePieceTokenizer.encode_batch
    monkeypatch.setattr(SentencePieceTokenizer, "encode_batch", lambda *args: [ids + 400 for ids in encode(*args)])
    (tmp_path / "a.txt").write_text("the river")
    with pytest.raises(DataError, match="ids must be 0 … "):
        build(tmp_path / "a.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_tokenizer_that_changes_during_the_run_is_noticed(tmp_path, tokenizer_directory):
    (tmp_path / "a.txt").write_text("the river")
    (unit,) = plan_units(open_inputs([str(tmp_path / "a.txt")], line_documents=False))
    job = Job(tmp_path, str(tokenizer_directory), "another hash", "text", 0.0, 100)
    with pytest.raises(DataError, match="was changed during the run"):
        run_unit(unit, job)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n\n\t\n", "holds no document, only blank lines"),
        (b"\xe3\x80\x80\n\n\xe3\x80\x80", r"all 2 documents are dropped \(2 empty\)"),
        (b"one\n\nt\xffo", r"a\.txt:3: invalid UTF-8"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_input_is_one_error_and_leaves_nothing(tmp_path, build, prose, content, message, workers):
    (tmp_path / "a.txt").write_bytes(content)
    good = [] if "all" in message else [prose(tmp_path / "good.txt", 20)]
    with pytest.raises(DataError, match=message):
        build(tmp_path / "a.txt", *good, workers=workers)
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", *(path.name for path in good)}


def test_a_share_that_leaves_nothing_to_train_on_is_an_error(tmp_path, build):
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(DataError, match=r"--held-out: 0\.999999 leaves none of 1 documents"):
        build(tmp_path / "a.txt", held_out=0.999999)


def test_an_existing_output_is_not_touched(tmp_path, build, prose):
    path = prose(tmp_path / "a.txt", 5)
    directory = build(path)
    before = tree(directory)
    with pytest.raises(DataError, match=r"--output: .* exists already; remove it"):
        build(path)
    assert tree(directory) == before
    (tmp_path / "empty").mkdir()
    assert tree(build(path, name="empty")) == before


@pytest.mark.parametrize("act", [preprocess, lambda request: list(dry_run(request))], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", r"'\.' exists already; name a new directory"),
        ("/", "'/' exists already; name a new directory"),
        ("link", "'link' is a symbolic link; name the directory that it should lead to"),
        ("a.txt/data", r"'a\.txt/data' cannot be below '.*a\.txt', which is a file"),
    ],
)
def test_an_output_that_can_never_appear_is_refused_before_the_work(
    tmp_path, prose, tokenizer_directory, monkeypatch, act, output, message
):
    monkeypatch.chdir(tmp_path)
    prose(tmp_path / "a.txt", 5)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(DataError, match=f"--output: {message}"):
        act(Request(inputs=["a.txt"], tokenizer=str(tokenizer_directory), output=Path(output), workers=1))
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "link"]


def test_the_command_prints_a_summary_and_warns_of_an_empty_held_out_split(
    tmp_path, prose, tokenizer_directory, capsys
):
    path = prose(tmp_path / "a.txt", 5)
    arguments = ["--input", str(path), "--tokenizer", str(tokenizer_directory), "--output", str(tmp_path / "data")]
    assert main([*arguments, "--held-out", "0.000001", "--min-tokens", "0"]) == 0
    output, errors = capsys.readouterr()
    assert "documents  5 read, 5 train, 0 held out, dropped: 0" in output
    assert "bytes/token" in output
    assert "MB/s" in output
    assert "warning: no document was held out" in errors
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: --output:")
    assert main([*arguments[:4], *arguments[4:5], str(tmp_path / "other"), "--tokenizer", "absent"]) == 2
    assert "no tokenizer directory 'absent'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--held-out=1", "--held-out=x", "--workers=0", "--shard-tokens=-1", "--min-tokens=-1"]
)
def test_impossible_flags_are_refused(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--input", "a.txt", "--tokenizer", "t", "--output", "o", flag])
    assert ended.value.code == 2
    assert flag.split("=")[0] in capsys.readouterr().err


@pytest.fixture
def long_run(tmp_path, prose, tokenizer_directory):
    """The command with two workers on a corpus that takes seconds; the process, once it writes shards."""
    text = prose(tmp_path / "part.txt", 2000).read_text()
    (tmp_path / "a.txt").write_text("\n\n".join([text] * 150))
    command = [sys.executable, "-m", "data_tools.preprocess", "--workers", "2", "--input", str(tmp_path / "a.txt")]
    command += ["--tokenizer", str(tokenizer_directory), "--output", str(tmp_path / "out" / "data")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which the shell ignores for what ends in `&`
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/.data.tmp/units/*/train/*.bin")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers_of(process):
    """Process ids of the workers, from /proc."""
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    return [pid for child in children(process.pid) if b"forkserver" in command(child) for pid in children(child)]


def children(pid):
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.distributed
def test_a_second_run_on_one_output_is_refused_and_the_first_goes_on(tmp_path, long_run, build, prose):
    with pytest.raises(DataError, match=r"--output: another process is writing '.*data'; wait for it or name"):
        build(prose(tmp_path / "small.txt", 5), name="out/data")
    assert list(tmp_path.glob("out/.data.tmp/units/*/train/*.bin"))
    assert long_run.poll() is None


@pytest.mark.distributed
def test_a_killed_worker_ends_the_run_within_seconds_and_no_output_appears(tmp_path, long_run):
    os.kill(workers_of(long_run)[0], signal.SIGKILL)
    start = time.monotonic()
    errors = long_run.communicate(timeout=30)[1]
    assert long_run.returncode == 2
    assert "error: a worker process was killed" in errors
    assert "Traceback" not in errors
    assert "continue with the same command" in errors
    assert time.monotonic() - start < 5
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".data.tmp"]


@pytest.mark.distributed
@pytest.mark.parametrize(("number", "to_all"), [("SIGINT", True), ("SIGTERM", False)])
def test_an_interrupt_ends_the_run_and_no_output_appears(tmp_path, long_run, number, to_all):
    (os.killpg if to_all else os.kill)(long_run.pid, getattr(signal, number))
    errors = long_run.communicate(timeout=30)[1]
    assert long_run.returncode == 130
    assert errors.strip().endswith("continue with the same command\ninterrupted")
    assert "Traceback" not in errors
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".data.tmp"]


@pytest.mark.distributed
def test_workers_end_with_a_killed_parent_and_a_restart_begins_clean(tmp_path, long_run, build, prose):
    workers = workers_of(long_run)
    os.kill(long_run.pid, signal.SIGKILL)
    long_run.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/status").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}/status").exists() for pid in workers)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".data.lock", ".data.tmp"]
    small = prose(tmp_path / "small.txt", 5)
    with pytest.raises(DataError, match=r"--input: file 1 is '.*small.txt', it was '.*a.txt', .* --restart"):
        build(small, name="out/data")
    build(small, name="out/data", restart=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["data"]
