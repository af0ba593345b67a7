"""A small real tokenizer and small corpora for the tests of the data tools."""

import io
import random

import pytest
import sentencepiece

WORDS = ["the", "of", "and", "a", "in", "to", "river", "mountain", "walked", "slowly", "old", "stone", "water"]


def write_prose(path, documents, *, seed=0):
    """A .txt file of made-up documents of a few lines each; returns the path."""
    draw = random.Random(seed)
    sentences = [[" ".join(draw.choices(WORDS, k=12)) for _ in range(draw.randint(1, 4))] for _ in range(documents)]
    path.write_text("\n\n".join(f"Document {i}\n" + ".\n".join(lines) for i, lines in enumerate(sentences)))
    return path


@pytest.fixture(scope="session")
def prose():
    return write_prose


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory):
    """A SentencePiece tokenizer of 400 pieces with byte fallback."""
    from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer
    from megatron_glm.tokenizer.special import ROLE_PIECES, SpecialTokens

    directory = tmp_path_factory.mktemp("tokenizer")
    text = write_prose(directory / "text.txt", 200).read_text()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")),
        model_writer=model,
        vocab_size=320,
        byte_fallback=True,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    own = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()
    special = SpecialTokens(**{role: own + i for i, role in enumerate(ROLE_PIECES)})
    SentencePieceTokenizer(model.getvalue(), special, list(ROLE_PIECES.values())).save(directory / "tokenizer")
    return directory / "tokenizer"
