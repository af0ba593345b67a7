"""Existing pairs of Megatron, read as they are.

Nothing tells how they were made: no manifest, no tokenizer, not even whether documents end with eos. The
last is found out by looking; that the ids are those of the run's tokenizer cannot be, beyond their range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path

import numpy as np

from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.pair_format import idx_path
from megatron_glm.data.pair_set import OPEN_PAIRS, Pair, PairSet
from megatron_glm.errors import DataError

_LOOKED_AT = 256  # documents whose ends are compared, beside two of every pair


class PrefixSet(PairSet):
    """Pairs given by their paths without extension, as one sequence of documents.

    Args:
        prefixes: paths or patterns; the pairs of a pattern are sorted by code points.
        num_ids: ids must be smaller; checked when they are read.
        eos: the id that ends a document, if the writer has stored one.

    Attributes:
        has_sentences: whether every pair holds more sequences than documents, as Megatron writes sentences.
        ends_with_eos: whether the documents that were looked at end with eos: two of every pair and some between.

    Raises:
        DataError: a pattern without pairs, a pair twice, missing or of an unknown format, or some documents
            end with eos and others do not.
    """

    def __init__(self, prefixes: Sequence[str], *, num_ids: int, eos: int, open_pairs: int = OPEN_PAIRS):
        pairs, split_up = [], []
        for prefix in expand(prefixes):
            file = IndexedFile(prefix)
            pairs.append(Pair(prefix, file.num_documents, file.num_tokens))
            if file.num_tokens:
                split_up.append(file.num_sequences > file.num_documents)
        super().__init__(
            pairs,
            ends_with_eos=True,
            has_sentences=bool(split_up) and all(split_up),
            num_ids=num_ids,
            advice="were these pairs written with the tokenizer of this run, and are they whole?",
            open_pairs=open_pairs,
        )
        self.ends_with_eos = self._documents_end_with(eos)

    def _documents_end_with(self, eos: int) -> bool:
        seen: dict[bool, int] = {}
        for document in self._documents_to_look_at():
            end = self.document_start(document + 1)
            seen.setdefault(self.tokens(end - 1, end)[0] == eos, document)
            if len(seen) == 2:
                raise DataError(
                    f"document {self._place(seen[True])} ends with eos (id {eos}), document "
                    f"{self._place(seen[False])} does not; give pairs of this run's tokenizer that all do or all do not"
                )
        return True in seen

    def _documents_to_look_at(self) -> Iterator[int]:
        # By tokens, as any token's document is not empty.
        spread = np.linspace(0, self.num_tokens - 1, _LOOKED_AT).astype(np.int64).tolist()
        ends = [place for start, stop in pairwise(self.shard_tokens.tolist()) for place in (start, stop - 1)]
        if self.num_tokens:
            for token in sorted({*spread, *(place for place in ends if 0 <= place < self.num_tokens)}):
                yield self.find_document(token)

    def _place(self, document: int) -> str:
        shard, place = self.locate_document(document)
        return f"{place} of '{self.prefix(shard)}'"


def expand(prefixes: Sequence[str]) -> list[Path]:
    """The pairs that paths and patterns stand for, in order, without their extensions.

    Raises:
        DataError: a pattern without pairs, a name with an extension or none, a pair twice, under whatever names.
    """
    found: dict[Path, Path] = {}  # by the file that a name leads to
    for prefix in prefixes:
        if prefix.endswith((".bin", ".idx")):
            raise DataError(f"'{prefix}': leave the extension out, it stands for a .bin and an .idx")
        if not Path(prefix).name or "\0" in prefix:
            raise DataError(f"{prefix!r}: names no file; give the path of a .bin and an .idx without extension")
        matches = [prefix]
        if has_magic(prefix):
            matches = sorted(path.removesuffix(".idx") for path in glob(f"{prefix}.idx", recursive=True))
        if not matches:
            raise DataError(f"'{prefix}': no .idx file has such a name")
        for path in map(Path, matches):
            first = found.setdefault(file_of(path), path)
            if first is not path:
                also = "" if first == path else f", also as '{first}'"
                raise DataError(f"'{path}' is given twice{also}; its documents would be read twice an epoch")
    return list(found.values())


def file_of(prefix: Path) -> Path:
    """What is the same for all names of one pair: where its .idx lies, links followed."""
    return idx_path(prefix).resolve()
