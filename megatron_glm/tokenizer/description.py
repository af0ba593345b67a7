"""glm_tokenizer.json: what a tokenizer directory holds beside the file of its pieces."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Self

from megatron_glm.errors import TokenizerError
from megatron_glm.json_reading import parse_json
from megatron_glm.tokenizer.special import SpecialTokens

DESCRIPTION_FILE = "glm_tokenizer.json"
FORMAT_VERSION = 1
MODEL_FILES = {"sentencepiece": "tokenizer.model", "wordpiece": "tokenizer.json", "bpe": "tokenizer.json"}


@dataclass(frozen=True)
class Description:
    """A tokenizer without its pieces.

    Args:
        kind: a key of MODEL_FILES.
        vocab_size: number of ids, special tokens included.
        special: ids by role.
        pieces: role to how it is written; for people.
        options: what the kind needs besides (added pieces, space before the first word).
        sha256: of the file of the pieces.
    """

    kind: str
    vocab_size: int
    special: SpecialTokens
    pieces: dict[str, str]
    options: dict[str, Any]
    sha256: str

    def to_json(self) -> str:
        special = {role: {"piece": self.pieces[role], "id": id} for role, id in self.special.by_role().items()}
        record = {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "vocab_size": self.vocab_size,
            "special": special,
            "options": self.options,
            "sha256": self.sha256,
        }
        return json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n"

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            TokenizerError: broken JSON, another format version, a missing or wrong entry.
        """
        try:
            record = parse_json(text)
        except ValueError as error:
            raise TokenizerError(f"broken JSON ({error})") from error
        if not isinstance(record, dict):
            raise TokenizerError("broken: expected a JSON object")
        if (version := record.get("format_version")) != FORMAT_VERSION:
            raise TokenizerError(f"format_version is {version!r}, this program reads {FORMAT_VERSION}")
        kind = _entry(record, "kind", str)
        if kind not in MODEL_FILES:
            raise TokenizerError(f"kind is {kind!r}, known are {', '.join(MODEL_FILES)}")
        special, pieces = _roles(_entry(record, "special", dict))
        return cls(
            kind=kind,
            vocab_size=_entry(record, "vocab_size", int),
            special=special,
            pieces=pieces,
            options=_entry(record, "options", dict),
            sha256=_entry(record, "sha256", str),
        )


def _roles(entries: dict) -> tuple[SpecialTokens, dict[str, str]]:
    known = [field.name for field in fields(SpecialTokens)]
    if unknown := sorted(entries.keys() - set(known)):
        raise TokenizerError(f"special.{unknown[0]}: no such role, known are {', '.join(known)}")
    if missing := [role for role in known if role not in entries and role != "block_mask"]:
        raise TokenizerError(f"special.{missing[0]}: missing")
    for role, entry in entries.items():
        if not isinstance(entry, dict) or type(entry.get("id")) is not int or not isinstance(entry.get("piece"), str):
            raise TokenizerError(f'special.{role}: expected {{"piece": a string, "id": a number}}, got {entry!r}')
    ids = {role: entry["id"] for role, entry in entries.items()}
    return SpecialTokens(**ids), {role: entry["piece"] for role, entry in entries.items()}


def _entry(record: dict, key: str, kind: type) -> Any:
    if type(value := record.get(key)) is not kind:
        raise TokenizerError(f"{key}: expected {kind.__name__}, got {value!r}")
    return value
