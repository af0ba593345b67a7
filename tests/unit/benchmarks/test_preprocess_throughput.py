"""The throughput benchmark runs, and its arms tokenize the same text to the same number of tokens."""

import json

import pytest

from benchmarks.preprocess_throughput import ARMS, main

WORDS = "Tokenizers read whatever stands in the text, numbers like 1,024 and names_of_things included."


@pytest.fixture
def run(tmp_path, shared):
    """Runs the benchmark with some of its arms; its report."""
    text, report = tmp_path / "text.jsonl", tmp_path / "report.json"
    paragraphs = [f"{number}. {WORDS[number % 40 :]} {WORDS[: number % 60]}" for number in range(300)]
    text.write_text(json.dumps({"text": "\n".join(paragraphs)}) + "\n", encoding="utf-8")
    vocabulary = [f"--vocab={shared('vocab/gpt2-vocab.json')}", f"--merges={shared('vocab/gpt2-merges.txt')}"]

    def measure(*arms, options=()):
        given = [*vocabulary, "--text", str(text), "--quick", "--scratch", str(tmp_path), "--json", str(report)]
        main([*given, *options, "--arms", *arms])
        return json.loads(report.read_text(encoding="utf-8"))

    return measure


@pytest.mark.golden
@pytest.mark.distributed
def test_a_quick_run_reports_rates_ratios_and_memory(run):
    report = run("bare tokenizers", "bare tokenizers, threads", "ours")
    assert {"commit", "command", "versions", "machine", "corpus"} <= report.keys()
    assert [(row["what"], row["target"]) for row in report["ratios"]] == [
        ("ours / (2 × bare tokenizers)", 0.85),
        ("ours / bare tokenizers, threads", 0.85),
    ]
    rates = {arm: row["MB/s"] for arm, row in report["arms"].items()}
    for row, bare in zip(
        report["ratios"], (2 * rates["bare tokenizers"], rates["bare tokenizers, threads"]), strict=True
    ):
        assert row["ratio"] == round(rates["ours"] / bare, 3)
    (tokens,) = {row["tokens"] for row in report["arms"].values()}
    assert tokens > 100_000
    assert [row["corpus"] for row in report["memory"]] == ["whole", "quarter", "short documents"]
    assert all(10**7 < row["peak PSS, bytes"] < 1.5 * 10**9 for row in report["memory"])


@pytest.mark.golden
@pytest.mark.distributed
def test_whole_documents_are_measured_with_fast_and_without_memory(run, tmp_path):
    pytest.importorskip("gigatoken")
    (tmp_path / "files").mkdir()
    for number in range(9):
        (tmp_path / "files" / f"{number}.md").write_text(WORDS * (number + 3), encoding="utf-8")
    report = run(
        "bare gigatoken",
        "ours, fast",
        options=["--documents", str(tmp_path / "files"), "--no-memory", "--processes", "1"],
    )
    assert report["corpus"]["pieces"] == 9
    assert "memory" not in report
    assert [(row["what"], row["target"]) for row in report["ratios"]] == [("ours, fast / (1 × bare gigatoken)", 0.5)]
    assert report["arms"]["ours, fast"]["tokens"] == report["arms"]["bare gigatoken"]["tokens"] > 100_000


@pytest.mark.slow
@pytest.mark.golden
@pytest.mark.distributed
@pytest.mark.parametrize("library", ["gigatoken", "datatrove", "megatron.core"])
def test_every_peer_gives_as_many_tokens_as_ours(run, library):
    pytest.importorskip(library)
    name = library.replace(".", "-")
    report = run("ours, fast", "ours", *(arm for arm in ARMS if name in arm))
    assert len(report["arms"]) == 3
