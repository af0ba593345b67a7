"""The manifest of a data directory: what it holds, from which inputs, by which tokenizer.

It holds no times and no paths but those the user gave, so equal inputs give equal bytes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from megatron_glm.data.seal import sealed, unsealed
from megatron_glm.errors import DataError
from megatron_glm.files import atomic_file

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
QUARANTINE = "quarantine.jsonl"
_REMEDY = "copy the directory again or write it again with python -m data_tools.preprocess"
SplitName = Literal["train", "held_out"]
SPLITS: tuple[SplitName, ...] = ("train", "held_out")
MalformedPolicy = Literal["fail", "skip", "quarantine"]
DedupePolicy = Literal["none", "exact"]

Count = Annotated[int, Field(ge=0, le=2**48)]  # so that sums over all shards stay within 64 bits
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Xxh3 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]


class Record(BaseModel):
    """A group of facts; unknown keys are refused, since the version says which there are."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Shard(Record):
    """One .bin/.idx pair, `<split>/<name>.bin`, and `<name>.origins`, the place of each document; sizes in bytes.

    Args:
        input: which of the inputs all its documents come from.
    """

    name: Annotated[str, StringConstraints(pattern="^[0-9]+$")]
    input: Count
    documents: Count
    tokens: Count
    bin_bytes: Count
    idx_bytes: Count
    origins_bytes: Count
    bin_sha256: Sha256
    idx_sha256: Sha256
    origins_sha256: Sha256


class Split(Record):
    """The shards of one split, in order."""

    shards: tuple[Shard, ...]
    documents: Count
    tokens: Count

    @model_validator(mode="after")
    def _totals(self) -> Self:
        documents = sum(shard.documents for shard in self.shards)
        tokens = sum(shard.tokens for shard in self.shards)
        if (documents, tokens) != (self.documents, self.tokens):
            raise ValueError(
                f"the shards hold {documents} documents and {tokens} tokens, "
                f"the split says {self.documents} and {self.tokens}"
            )
        if twice := [name for name, times in Counter(shard.name for shard in self.shards).items() if times > 1]:
            raise ValueError(f"shard '{twice[0]}' is listed twice")
        return self


class Splits(Record):
    """What is trained on, and what is only evaluated."""

    train: Split
    held_out: Split


class Probe(Record):
    """A short text and its ids: a tokenizer that gives others is not the one of this data."""

    text: str
    ids: tuple[Count, ...]


class TokenizerRecord(Record):
    """The identity of the tokenizer that wrote the ids."""

    hash: str
    kind: str
    vocab_size: Annotated[int, Field(ge=1)]
    special: dict[str, Count | None]
    probes: tuple[Probe, ...]


class InputPart(Record):
    """A run of bytes of an input that one process has read, and their XXH3-128."""

    bytes: Count
    xxh3_128: Xxh3


class Input(Record):
    """One input file, and what became of its documents.

    Args:
        unit: what the places of its documents count.
        parts: of the file, from its beginning to its end.
    """

    path: str
    unit: Literal["byte", "row"]
    bytes: Count
    parts: tuple[InputPart, ...]
    documents_in: Count
    documents_out: Count
    dropped: dict[str, Count]
    repaired: dict[str, Count]

    @model_validator(mode="after")
    def _every_byte_is_accounted_for(self) -> Self:
        if (read := sum(part.bytes for part in self.parts)) != self.bytes:
            raise ValueError(f"{self.path}: has {self.bytes} bytes, but its parts {read}")
        return self

    @model_validator(mode="after")
    def _every_document_is_accounted_for(self) -> Self:
        dropped = sum(self.dropped.values())
        if self.documents_in != self.documents_out + dropped:
            raise ValueError(
                f"{self.path}: {self.documents_in} documents in, but {self.documents_out} out and {dropped} dropped"
            )
        return self


class Options(Record):
    """How the inputs were read and cut."""

    held_out: float
    text_key: str
    line_documents: bool
    shard_tokens: Count
    sentences: bool = False
    min_tokens: Count = 0
    malformed: MalformedPolicy = "fail"
    dedupe: DedupePolicy = "none"


class Quarantine(Record):
    """`quarantine.jsonl`: the documents that could not be read, one a line."""

    documents: Count
    bytes: Count
    sha256: Sha256


class Manifest(Record):
    """The content of manifest.json."""

    format_version: Literal[3] = FORMAT_VERSION
    tokenizer: TokenizerRecord
    dtype: Literal["uint16", "int32"]
    append_eos: bool
    splits: Splits
    inputs: tuple[Input, ...]
    quarantine: Quarantine | None = None
    options: Options
    versions: dict[str, str]

    @model_validator(mode="after")
    def _inputs_give_the_splits(self) -> Self:
        held = [0] * len(self.inputs)
        for shard in (*self.splits.train.shards, *self.splits.held_out.shards):
            if shard.input >= len(self.inputs):
                raise ValueError(f"shard '{shard.name}' is of input {shard.input}, there are {len(self.inputs)}")
            held[shard.input] += shard.documents
        for entry, documents in zip(self.inputs, held, strict=True):
            if entry.documents_out != documents:
                raise ValueError(f"{entry.path}: gave {entry.documents_out} documents, the splits hold {documents}")
        return self

    def split(self, name: SplitName) -> Split:
        return self.splits.train if name == "train" else self.splits.held_out


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, with its own hash."""
    with atomic_file(directory / MANIFEST) as stream:
        stream.write(sealed(manifest.model_dump_json(indent=1).encode("utf-8")))


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a data directory.

    Raises:
        DataError: there is none, it contradicts its format or itself, or a byte of it was changed.
    """
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"no shards in '{directory}' (expected {MANIFEST}; run python -m data_tools.preprocess first)"
        ) from error
    content, is_sealed = unsealed(text)
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = next((e for e in error.errors() if e["loc"] == ("format_version",)), error.errors()[0])
        if first["type"] == "literal_error" and first["loc"] == ("format_version",):
            raise DataError(
                f"{path}: format_version is {first['input']!r}, this program reads {FORMAT_VERSION}; "
                "write the data again with python -m data_tools.preprocess"
            ) from error
        place = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{path}: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}; {_REMEDY}"
        ) from error
    if not is_sealed:
        raise DataError(f"{path}: its content is not what its own hash (the last line, sha256) was made of; {_REMEDY}")
    return manifest
