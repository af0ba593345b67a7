"""The vocabularies of the original GLM releases, with the ids that the original code gave the special tokens.

Source: THUDM/GLM, data_utils/tokenization.py, options `--block-lm --task-mask` (with
`--fix-command-token` for Chinese: without it, [gMASK] is end of piece).
"""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer
from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer
from megatron_glm.tokenizer.special import ROLE_PIECES, SpecialTokens

_SOP, _EOP = ROLE_PIECES["start_of_piece"], ROLE_PIECES["end_of_piece"]
_EOS, _CLS, _MASK = ROLE_PIECES["eos"], ROLE_PIECES["cls"], ROLE_PIECES["mask"]
_SMASK, _GMASK, _DBLOCK = ROLE_PIECES["sentence_mask"], ROLE_PIECES["document_mask"], ROLE_PIECES["block_mask"]


def bert_uncased(vocab: Path, *, block_mask: bool = False) -> HuggingFaceTokenizer:
    """BERT's lower-casing WordPiece over a vocab.txt, one piece a line.

    Raises:
        TokenizerError: the file cannot be read, repeats a piece, or lacks one of BERT's special pieces.
    """
    pieces = _read(vocab).decode(errors="replace").splitlines()
    ids = {piece: id for id, piece in enumerate(pieces)}
    if len(ids) != len(pieces):
        raise TokenizerError(f"'{vocab}': a piece occurs twice; a BERT vocabulary has one piece a line")
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    own = {"eos": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    added = [_SOP, _EOP, _GMASK, _SMASK, *[_DBLOCK] * block_mask]
    return _finish("wordpiece", backend, vocab, own, ("[UNK]", "[SEP]"), added)


def gpt2(vocab: Path, merges: Path, *, block_mask: bool = False) -> HuggingFaceTokenizer:
    """GPT-2's byte-level BPE over vocab.json and merges.txt.

    Raises:
        TokenizerError: a file cannot be read, or <|endoftext|> is missing.
    """
    added = [_SOP, _EOP, _CLS, _MASK, "[SEP]", "[UNK]", _GMASK, _SMASK, *[_DBLOCK] * block_mask]
    return _finish("bpe", _byte_level_bpe(vocab, merges), vocab, {"eos": _EOS}, (), added)


def roberta(vocab: Path, merges: Path, *, block_mask: bool = False) -> HuggingFaceTokenizer:
    """RoBERTa's byte-level BPE over vocab.json and merges.txt.

    Raises:
        TokenizerError: a file cannot be read, or lacks one of RoBERTa's special pieces.
    """
    own = {"eos": "</s>", "cls": "<s>", "mask": "<mask>"}
    added = [_SOP, _EOP, _GMASK, _SMASK, *[_DBLOCK] * block_mask]
    backend = _byte_level_bpe(vocab, merges)
    fillers = (f"madeupword{n:04}" for n in range(3))  # fairseq filled its vocabulary up to a multiple of 8
    other = ("<pad>", "<unk>", *(piece for piece in fillers if backend.token_to_id(piece) is not None))
    return _finish("bpe", backend, vocab, own, other, added)


def chinese(model: Path, *, block_mask: bool = False) -> SentencePieceTokenizer:
    """The SentencePiece model of GLM-Large/10B-Chinese (cog-pretrain.model); special ids follow its 50,000 pieces.

    Raises:
        TokenizerError: the file cannot be read or is no SentencePiece model.
    """
    # The original leaves the sixth id unused; [gMASK] is the tenth, as `--fix-command-token` places it.
    added = [_EOS, "[SEP]", _CLS, _MASK, "[UNK]", "[unused]", _SOP, _EOP, _SMASK, _GMASK, *[_DBLOCK] * block_mask]
    try:
        return SentencePieceTokenizer.with_special(_read(model), added)
    except TokenizerError as error:
        raise TokenizerError(f"'{model}': {error}") from error


def _byte_level_bpe(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    for path in (vocab, merges):
        _read(path)  # the library's own error does not name the file
    try:
        backend = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises bare exceptions
        raise TokenizerError(f"'{vocab}' and '{merges}' are no BPE vocabulary and merges ({error})") from error
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _finish(
    kind: str, backend: tokenizers.Tokenizer, vocab: Path, own: dict[str, str], other: tuple[str, ...], added: list[str]
) -> HuggingFaceTokenizer:
    for piece in (*own.values(), *other):
        if backend.token_to_id(piece) is None:
            raise TokenizerError(f"'{vocab}': the piece {piece} is missing; is --kind right?")
    # A mask takes the space on its left, for those who use tokenizer.json without us.
    backend.add_special_tokens(
        [
            AddedToken(piece, special=True, normalized=False, lstrip=kind == "bpe" and "mask" in piece.lower())
            for piece in (*own.values(), *other, *added)
        ]
    )
    roles = {role: piece for role, piece in ROLE_PIECES.items() if piece in added} | own
    special = SpecialTokens(**{role: backend.token_to_id(piece) for role, piece in roles.items()})
    return HuggingFaceTokenizer(kind, backend.to_str().encode(), special, prefix_space=kind == "bpe")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"'{path}': {error.strerror}") from error
