"""What is read of a file does not depend on how much is read at a time."""

import json
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools import documents, units
from data_tools.documents import DocumentReader
from data_tools.inputs import open_inputs, whole
from data_tools.units import batches

GOOD = st.builds(lambda text: json.dumps({"text": text, "more": 1}), st.text(max_size=30))
BAD = st.sampled_from(
    [
        '{"text": "cut',
        '{"body": "a"}',
        "[1]",
        '{"text": 1}',
        '"text"',
        '{"text": "\\ud800"}',
        "",
        "  ",
        '{"text": null}',
    ]
)
_SURROGATE = re.compile("[\ud800-\udfff]")
LINES = st.lists(st.one_of(GOOD, GOOD, GOOD, BAD), max_size=12)


def read(path, read_bytes, monkeypatch):
    """Documents one by one, what was refused, and the checksum."""
    monkeypatch.setattr(documents, "READ_BYTES", read_bytes)
    (file,) = open_inputs([str(path)], line_documents=False)
    refused = []
    reader = DocumentReader(whole(file), "text", refused.append)
    found = [each for texts, places in reader.blocks() for each in zip(texts, places, strict=True)]
    return found, refused, reader.repaired, reader.checksum


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, end=st.sampled_from(["", "\n", "\r\n"]))
def test_json_lines_alone_and_together(tmp_path_factory, monkeypatch, lines, end):
    content = "\n".join([json.dumps({"text": "first"}), *lines]) + end
    path = tmp_path_factory.mktemp("blocks") / "a.jsonl"
    path.write_bytes(content.encode())
    alone = read(path, 1, monkeypatch)
    assert read(path, 1 << 20, monkeypatch) == read(path, 50, monkeypatch) == alone
    for text, place in alone[0]:
        assert text == _SURROGATE.sub("\ufffd", json.loads(content.encode()[place:].split(b"\n")[0])["text"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40), most=st.integers(1, 9), characters=st.integers(1, 90)
)
def test_batches_hold_every_document_once_and_not_too_many(tmp_path_factory, monkeypatch, sizes, most, characters):
    monkeypatch.setattr(units, "_BATCH_DOCUMENTS", most)
    monkeypatch.setattr(units, "_BATCH_CHARACTERS", characters)
    monkeypatch.setattr(documents, "READ_BYTES", 64)
    path = tmp_path_factory.mktemp("batches") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "a" * size}) + "\n" for size in sizes))
    (file,) = open_inputs([str(path)], line_documents=False)
    found = list(batches(DocumentReader(whole(file), "text")))
    assert [len(text) for texts, _ in found for text in texts] == sizes
    assert [int(place) for _, places in found for place in places] == [
        place for _, place in DocumentReader(whole(file), "text")
    ]
    assert all(0 < len(texts) == len(places) <= most for texts, places in found)
