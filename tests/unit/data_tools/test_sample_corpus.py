"""The sample corpus: real prose of what is installed, read and not imported, the same every time."""

import json

import pytest

from data_tools import sample_corpus
from data_tools.docstrings import SourceFile, docstrings, import_roots, source_files
from data_tools.sample_corpus import Document, collect, read_prose, write_corpus
from megatron_glm.errors import DataError

PARAGRAPH = "The river carries small stones to the sea, and it takes a very long time for each of them. " * 3


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return SourceFile(path, name)


def test_docstrings_come_in_the_order_of_lines(tmp_path):
    file = write(
        tmp_path,
        "m.py",
        '"""One."""\nclass A:\n    """Two."""\n    def f(self):\n        """Three."""\n'
        'if 1:\n    def g():\n        """Four."""\n        return """no docstring"""\n',
    )
    assert docstrings(file) == ["One.", "Two.", "Three.", "Four."]


def test_nothing_is_imported(tmp_path):
    file = write(tmp_path, "m.py", '"""Read only."""\nraise SystemExit\n')
    assert docstrings(file) == ["Read only."]


@pytest.mark.parametrize("text", ['"""open', 'print """old"""', '"""nul\0"""'])
def test_what_is_no_python_is_passed_over(tmp_path, text):
    assert docstrings(write(tmp_path, "m.py", text)) == []


def test_the_topics_of_the_language_reference_are_found():
    roots = import_roots()
    topics = [SourceFile(path, "pydoc_data/topics.py") for r in roots if (path := r / "pydoc_data/topics.py").exists()]
    assert len(docstrings(topics[0])) > 50


def test_files_are_found_in_the_order_of_names_and_without_test_suites(tmp_path):
    for name in ("b.py", "a/z.py", "a/__init__.py", "a/tests/t.py", "a/__pycache__/c.py", "a/notes.txt"):
        write(tmp_path, name, "")
    assert [file.name for file in source_files(tmp_path)] == ["a/__init__.py", "a/z.py", "b.py"]


def test_a_paragraph_is_kept_once_also_if_only_names_differ():
    modules = [
        ("a/__init__.py", [PARAGRAPH, "Builds a FooModel of size 12."]),
        ("b.py", [PARAGRAPH.upper(), "Builds a BarModel of size 7.", PARAGRAPH + "More."]),
    ]
    documents = list(collect(modules))
    assert [document.source for document in documents] == ["a", "b"]
    assert documents[1].text == PARAGRAPH + "More."


def test_very_short_modules_are_no_documents():
    assert list(collect([("a.py", ["A short one is left out."])])) == []


def test_processes_give_the_files_in_order(tmp_path):
    files = [write(tmp_path, f"m{i:02}.py", f'"""Module number {"x" * i} is read here."""') for i in range(40)]
    read = list(read_prose(files))
    assert [name for name, _ in read] == [file.name for file in files]
    assert read[3] == ("m03.py", ["Module number xxx is read here."])


def test_too_little_text_is_an_error_and_leaves_nothing(tmp_path):
    output = tmp_path / "corpus.jsonl"
    with pytest.raises(DataError, match=r"--min-megabytes: found 0\.00 MB of prose .* 8 are asked for"):
        write_corpus([Document("a", PARAGRAPH)], output, 8)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_json_lines_and_prints_the_share(tmp_path, monkeypatch, capfd):
    write(tmp_path / "site", "pkg/river.py", f'"""{PARAGRAPH}"""')
    monkeypatch.setattr(sample_corpus, "import_roots", lambda: [tmp_path / "site"])
    output = tmp_path / "new" / "corpus.jsonl"
    arguments = ["--output", str(output), "--min-megabytes"]
    assert sample_corpus.main([*arguments, "0.0001"]) == 0
    assert "1 documents, 0.00 MB, 99.3% of the text in full sentences" in capfd.readouterr().out
    (record,) = map(json.loads, output.read_text().splitlines())
    assert record == {"text": PARAGRAPH.strip(), "source": "pkg.river"}
    assert sample_corpus.main([*arguments, "8"]) == 2
    assert "error: --min-megabytes: found 0.00 MB" in capfd.readouterr().err
    assert output.exists()  # the earlier corpus was not touched


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "corpus.txt"], "corpus.txt is to hold JSON lines; give it a name that ends with .jsonl"),
        (["--output", "corpus.jsonl", "--min-megabytes", "nan"], "nan is no size of 0 or more"),
        (["--output", "corpus.jsonl", "--min-megabytes", "-1"], "-1 is no size of 0 or more"),
    ],
)
def test_what_could_not_be_read_or_measured_is_refused_before_the_work(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        sample_corpus.main(arguments)
    assert message in capsys.readouterr().err


def test_an_installed_package_gives_mostly_full_sentences():
    root = next(root for root in import_roots() if (root / "argparse.py").exists())
    names = ("argparse.py", "threading.py", "statistics.py", "difflib.py", "logging/__init__.py")
    documents = list(collect((name, sample_corpus.prose(SourceFile(root / name, name))) for name in names))
    text = "\n".join(document.text for document in documents)
    assert len(text) > 20_000
    assert sample_corpus.sentence_share(text) >= 0.7
    assert ">>>" not in text


def test_named_packages_only_are_read(tmp_path):
    files = [write(tmp_path, name, "") for name in ("a/x.py", "ab/x.py", "b.py")]
    assert [file.name for file in sample_corpus.of_packages(files, ["b", "a"])] == ["b.py", "a/x.py"]


def test_a_package_that_is_not_installed_is_named(tmp_path):
    with pytest.raises(DataError, match="--packages: 'absent' has no Python files"):
        sample_corpus.of_packages([write(tmp_path, "a.py", "")], ["a", "absent"])
