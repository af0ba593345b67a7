"""The tokenizer of a release: AutoTokenizer of transformers cuts and joins text as ours does."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.release.description import tokenizer_config
from megatron_glm.release.publishing import TEMPLATES
from megatron_glm.tokenizer.published import bert_uncased, chinese, roberta

# Blanks, what may stand beside them, and what a normalizer changes: full-width and joined signs, spaces of all kinds.
PARTS = [
    *("[MASK]", "[sMASK]", "[gMASK]", "[CLS]", "<|endofpiece|>", "</s>", "<unk>"),
    *(" ", "  ", "\n", "\t", "\u3000", "\u00a0", "\u2581", "\u200b"),
    *("a", "the", "It", "'s", "7", ".", "[", "é", "e\u0301", "你", "好", "世界", "。", "Ａ", "ﬁ", "\U0001f600"),
]


@pytest.fixture
def both(request, shared, tmp_path, transformers, tokenizer):
    """(ours, AutoTokenizer on its files in a release); the parameter says of which vocabulary."""
    makers = {
        "bert": lambda: bert_uncased(shared("vocab/bert-base-uncased-vocab.txt")),
        "roberta": lambda: roberta(shared("vocab/roberta-vocab.json"), shared("vocab/roberta-merges.txt")),
        "chinese": lambda: chinese(shared("vocab/cog-pretrain.model")),
        "trained": lambda: tokenizer,
    }
    ours = makers[request.param]()
    ours.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    shutil.copyfile(TEMPLATES / "tokenization_glm.py", tmp_path / "tokenization_glm.py")
    return ours, transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)


VOCABULARIES = ["trained", *(pytest.param(name, marks=pytest.mark.golden) for name in ("bert", "roberta", "chinese"))]
each_vocabulary = pytest.mark.parametrize("both", VOCABULARIES, indirect=True)


@each_vocabulary
def test_auto_tokenizer_reads_and_writes_blanks_anywhere_as_we_do(both):
    ours, theirs = both
    special = ours.special
    blanks = {special.mask, special.sentence_mask, special.document_mask}

    @given(text=st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
    @settings(max_examples=300, deadline=None)
    def agree(text):
        ids = ours.encode_with_special(text).tolist()
        assert theirs.encode(text, add_special_tokens=False) == ids
        assert theirs.decode(ids) == ours.decode(ids)
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode([id for id in ids if id not in blanks])
        closing = [] if ids[-1:] == [special.document_mask] else [special.eos]
        assert theirs(text)["input_ids"] == [special.cls, *ids, *closing]

    agree()


@pytest.mark.golden
@pytest.mark.parametrize("both", ["chinese"], indirect=True)
@pytest.mark.parametrize(
    "text", ["[MASK]好", "你[MASK]好", "the[MASK] end", "你[MASK] 好", "[MASK] ", "a[gMASK]", " a"]
)
def test_a_blank_is_followed_by_a_space_where_the_text_has_one(both, text):
    # The model of the Chinese release puts a space in front of every text that it is given.
    ours, theirs = both
    ids = theirs.encode(text, add_special_tokens=False)
    assert ids == ours.encode_with_special(text).tolist()
    assert theirs.decode(ids) == text.removeprefix(" ")  # the model itself drops a text's first space


@each_vocabulary
def test_roles_have_the_names_that_transformers_knows(both):
    ours, theirs = both
    special = ours.special
    names = {"pad": special.eos, "bos": special.start_of_piece, "cls": special.cls, "mask": special.mask}
    assert {name: getattr(theirs, f"{name}_token_id") for name in names} == names


@each_vocabulary
def test_a_tokenizer_saved_by_transformers_is_the_same(both, tmp_path, transformers):
    _, theirs = both
    theirs.save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    assert again("Hello [MASK], 你好 [sMASK]") == theirs("Hello [MASK], 你好 [sMASK]")
