"""The tokenizer of a GLM release, for Hugging Face transformers.

It reads glm_tokenizer.json and, beside it, the SentencePiece model (tokenizer.model) or the file of
the `tokenizers` library (tokenizer.json). In a text [MASK], [sMASK] and [gMASK] are blanks; whatever else
spells a special token is plain text.
"""

import json
import re
import shutil
from itertools import groupby
from pathlib import Path

from transformers import PreTrainedTokenizer

BLANKS = {"[MASK]": "mask", "[sMASK]": "sentence_mask", "[gMASK]": "document_mask"}
# A mask stands for the words and the space before them, as in pretraining.
BLANK = re.compile(f" *({'|'.join(map(re.escape, BLANKS))})")
SPACE = "\u2581"  # SentencePiece's own sign for a space
# add_dummy_prefix: false, remove_extra_whitespaces: false; appended to a model, it changes just these options.
KEEP_SPACES = b"\x1a\x04\x18\x00\x20\x00"


class _SentencePiece:
    """A SentencePiece model and the special pieces that follow it.

    A model that puts a space in front of each text must not do so behind a blank, and must keep the text's own.
    """

    def __init__(self, path, added_pieces):
        import sentencepiece

        model = Path(path).read_bytes()
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._puts_a_space_in_front = self._processor.normalize("a") != "a"
        self._behind = self._processor
        if self._puts_a_space_in_front:
            self._behind = sentencepiece.SentencePieceProcessor(model_proto=model + KEEP_SPACES)
        self._own = self._processor.get_piece_size()
        self.pieces = [self._processor.id_to_piece(id) for id in range(self._own)] + added_pieces

    def encode(self, text, continued):
        if not (continued and self._puts_a_space_in_front):
            return self._processor.encode(text)
        normalized = self._processor.normalize(text).removeprefix(SPACE)
        lost = text[:1].isspace() and not (normalized[:1].isspace() or normalized.startswith(SPACE))
        return self._behind.encode(SPACE + normalized if lost else normalized)

    def decode(self, ids):
        text, processor = "", self._processor
        for ordinary, group in groupby(ids, key=lambda id: id < self._own):
            run = list(group)
            text += processor.decode(run) if ordinary else "".join(self.pieces[id] for id in run)
            processor = self._behind  # the space in front is the text's own, except at the start
        return text


class _HuggingFace:
    """A tokenizer.json; `prefix_space` makes the first word the same piece as elsewhere."""

    def __init__(self, path, prefix_space, special_ids):
        import tokenizers

        self._backend = tokenizers.Tokenizer.from_file(str(path))
        self._backend.encode_special_tokens = True  # what spells a special token is plain text
        self._backend.no_truncation()
        self._backend.no_padding()
        self._prefix_space = prefix_space
        self._special_ids = special_ids
        size = self._backend.get_vocab_size(with_added_tokens=True)
        self.pieces = [self._backend.id_to_token(id) for id in range(size)]

    def encode(self, text, continued):
        if self._prefix_space and text and not continued:
            text = " " + text
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        text = self._backend.decode(ids, skip_special_tokens=False)
        starts_with_text = bool(ids) and ids[0] not in self._special_ids
        return text.removeprefix(" ") if self._prefix_space and starts_with_text else text


class GLMTokenizer(PreTrainedTokenizer):
    """Ids as in training; `tokenizer(text)` puts [CLS] in front and eos behind, unless [gMASK] closes the text."""

    vocab_files_names = {"description_file": "glm_tokenizer.json"}  # noqa: RUF012
    model_input_names = ["input_ids"]  # noqa: RUF012

    def __init__(self, description_file, **kwargs):
        self._directory = Path(description_file).parent
        description = json.loads(Path(description_file).read_text(encoding="utf-8"))
        self._ids = {role: entry["id"] for role, entry in description["special"].items()}
        options = description["options"]
        if description["kind"] == "sentencepiece":
            self._files = ["glm_tokenizer.json", "tokenizer.model"]
            self._pieces = _SentencePiece(self._directory / "tokenizer.model", options["added_pieces"])
        else:
            self._files = ["glm_tokenizer.json", "tokenizer.json"]
            special_ids = frozenset(self._ids.values())
            self._pieces = _HuggingFace(self._directory / "tokenizer.json", options["prefix_space"], special_ids)
        self._id_of = {piece: id for id, piece in enumerate(self._pieces.pieces)}
        special = {role: self._pieces.pieces[id] for role, id in self._ids.items()}
        named = {
            "cls_token": special["cls"],
            "eos_token": special["eos"],
            "pad_token": special["eos"],
            "mask_token": special["mask"],
            "bos_token": special["start_of_piece"],
        }
        others = [piece for piece in special.values() if piece not in named.values()]
        # transformers 4 knows this name only; 5 takes it too, unless its own is there.
        kwargs.pop("extra_special_tokens", None)
        super().__init__(**{**kwargs, **named, "additional_special_tokens": others})

    @property
    def vocab_size(self):
        return len(self._pieces.pieces)

    def get_vocab(self):
        return dict(self._id_of)

    def tokenize(self, text, **kwargs):
        """The pieces of a text whose blanks are [MASK], [sMASK] and [gMASK]."""
        first, *rest = BLANK.split(text)  # text, mask, text, mask, …, text
        ids = list(self._pieces.encode(first, continued=False))
        for blank, after in zip(rest[::2], rest[1::2], strict=True):
            ids += [self._ids[BLANKS[blank]], *self._pieces.encode(after, continued=True)]
        return [self._pieces.pieces[id] for id in ids]

    def _convert_token_to_id(self, token):
        return self._id_of.get(token)

    def _convert_id_to_token(self, index):
        return self._pieces.pieces[index]

    def convert_tokens_to_string(self, tokens):
        return self._pieces.decode([self._id_of[token] for token in tokens])

    def _decode(self, token_ids, skip_special_tokens=False, **kwargs):
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if skip_special_tokens:
            special = set(self._ids.values())
            ids = [id for id in ids if id not in special]
        return self._pieces.decode(ids)

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        if token_ids_1 is not None:
            raise ValueError("GLM reads one text, not a pair; join the texts")
        continued = bool(token_ids_0) and token_ids_0[-1] == self._ids["document_mask"]
        return [self._ids["cls"], *token_ids_0, *([] if continued else [self._ids["eos"]])]

    def save_vocabulary(self, save_directory, filename_prefix=None):
        paths = [Path(save_directory) / name for name in self._files]
        for name, path in zip(self._files, paths, strict=True):
            if path.resolve() != (self._directory / name).resolve():
                shutil.copyfile(self._directory / name, path)
        return tuple(map(str, paths))
