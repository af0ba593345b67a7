"""A small vocabulary for the objectives: ids 0…7 are special, 8…11 end a sentence, the rest is text."""

from itertools import chain

import numpy as np
import pytest

from megatron_glm.config.schema import Objective as ObjectiveConfig
from megatron_glm.objective.mixture import Mixture
from megatron_glm.objective.window import Window
from megatron_glm.tokenizer.base import SpecialTokens


@pytest.fixture(scope="session")
def special():
    return SpecialTokens(
        cls=1, eos=0, mask=2, sentence_mask=3, document_mask=4, start_of_piece=5, end_of_piece=6, block_mask=7
    )


@pytest.fixture(scope="session")
def sentence_ends():
    ends = np.zeros(2000, bool)
    ends[8:12] = True
    return ends


@pytest.fixture(scope="session")
def make_window():
    """Pieces given as lists of text tokens: [CLS] goes before each, eos after each but an open last one."""

    def make(*texts, open_end=False):
        pieces = [[1, *text, 0] for text in texts]
        if open_end:
            pieces[-1].pop()
        starts = np.cumsum([0] + [len(piece) for piece in pieces])
        return Window(np.array(list(chain.from_iterable(pieces)), np.int32), starts.astype(np.int32))

    return make


@pytest.fixture(scope="session")
def make_mixture(special, sentence_ends):
    """A mixture from options of the config; the objectives' shares default to the token objective alone."""

    def make(*, window=512, max_positions=512, isolate_documents=True, seed=7, special=special, **options):
        shares = {"token": 0.0, "sentence": 0.0, "document": 0.0}
        if not shares.keys() & options.keys():
            shares["token"] = 1.0
        return Mixture(
            ObjectiveConfig(**(shares | options)),
            special,
            sentence_ends,
            max_positions=max_positions,
            window=window,
            isolate_documents=isolate_documents,
            seed=seed,
        )

    return make
