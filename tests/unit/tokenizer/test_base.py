"""What holds for a tokenizer of any kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.tokenizer import published
from megatron_glm.tokenizer.special import ROLE_PIECES

SPELLED = [*ROLE_PIECES.values(), "<s>", "</s>", "<mask>", "<unk>", "<pad>", "[PAD]", "[UNK]", "[SEP]", "<0x0A>"]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))


@pytest.mark.parametrize("spelled", SPELLED)
def test_text_that_spells_a_special_token_is_plain_text(tokenizer, spelled):
    text = f"a {spelled} b{spelled}"
    (batch,) = tokenizer.encode_batch([text])
    special = set(tokenizer.special.by_role().values())
    for ids in (batch, tokenizer.encode(text)):
        assert not special & set(ids.tolist())
        decoded = tokenizer.decode(ids)
        if tokenizer.kind == "wordpiece":  # which keeps neither case nor spaces
            assert decoded.replace(" ", "") == text.replace(" ", "").lower()
        else:
            assert decoded == text


@given(text=TEXT)
def test_sentencepiece_gives_text_back_exactly(sentencepiece_tokenizer, text):
    assert sentencepiece_tokenizer.decode(sentencepiece_tokenizer.encode(text)) == text


@given(text=TEXT)
def test_bpe_gives_text_back_exactly(bpe_tokenizer, text):
    assert bpe_tokenizer.decode(bpe_tokenizer.encode(text)) == text


@given(texts=st.lists(st.text(st.sampled_from("ab th\n.é"), max_size=12), max_size=5))
def test_a_batch_is_its_texts_one_by_one(sentencepiece_tokenizer, bpe_tokenizer, wordpiece_tokenizer, texts):
    for tokenizer in (sentencepiece_tokenizer, bpe_tokenizer, wordpiece_tokenizer):
        batch = tokenizer.encode_batch(texts)
        assert all(ids.dtype == np.int32 for ids in batch)
        assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]


@given(texts=st.lists(st.text(st.sampled_from("ab th.。\n\té😀½각\u200d\u3000é\x00[]"), max_size=12), max_size=4))
def test_offsets_place_the_tokens_of_encode_in_the_text(
    sentencepiece_tokenizer, bpe_tokenizer, wordpiece_tokenizer, texts
):
    for tokenizer in (sentencepiece_tokenizer, bpe_tokenizer, wordpiece_tokenizer):
        ids, lengths, offsets = tokenizer.encode_with_offsets(texts)
        assert (ids.dtype, lengths.dtype, offsets.dtype) == (np.int32, np.int64, np.int32)
        assert offsets.shape == (len(ids), 2)
        own = [tokenizer.encode(text).tolist() for text in texts]
        assert ids.tolist() == [id for each in own for id in each]
        assert lengths.tolist() == [len(each) for each in own]
        for text, each in zip(texts, np.split(offsets, np.cumsum(lengths)[:-1]) if texts else [], strict=True):
            assert (np.diff(each, axis=0) >= 0).all()
            assert ((each[:, 0] >= 0) & (each[:, 0] <= each[:, 1]) & (each[:, 1] <= len(text))).all()


@given(text=st.text(st.sampled_from("ab th.。\n\té😀½각\u200d\u3000é\x00"), max_size=12))
def test_the_text_before_an_offset_is_that_of_the_tokens_before_it(sentencepiece_tokenizer, bpe_tokenizer, text):
    for tokenizer in (sentencepiece_tokenizer, bpe_tokenizer):  # which lose nothing
        ids, _, offsets = tokenizer.encode_with_offsets([text])
        for count, end in enumerate(offsets[:, 1].tolist(), start=1):
            # Bytes of a character that is not whole yet are shown by the sign for them.
            assert tokenizer.decode(ids[:count]).rstrip("\ufffd") == text[:end]


def test_what_a_tokenizer_drops_lies_between_its_tokens(wordpiece_tokenizer):
    assert wordpiece_tokenizer.encode_with_offsets([" A\u200d  é.\n"])[2].tolist() == [[1, 2], [5, 6], [6, 7]]


@pytest.mark.golden
def test_offsets_of_the_published_vocabularies_end_a_sentence_at_its_mark(shared):
    text = "Dr. naïve café… 你好。 \n\nＡＢ！ x😀. "
    for tokenizer in (
        published.bert_uncased(shared("vocab/bert-base-uncased-vocab.txt")),
        published.gpt2(shared("vocab/gpt2-vocab.json"), shared("vocab/gpt2-merges.txt")),
        published.roberta(shared("vocab/roberta-vocab.json"), shared("vocab/roberta-merges.txt")),
        published.chinese(shared("vocab/cog-pretrain.model")),
    ):
        ids, _, offsets = tokenizer.encode_with_offsets([text])
        assert ids.tolist() == tokenizer.encode(text).tolist()
        ends = set(offsets[:, 1].tolist())
        assert {place + 1 for place, sign in enumerate(text) if sign in "。！."} <= ends


def test_an_empty_text_has_no_tokens(tokenizer):
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.decode([]) == ""


def test_prompts_may_hold_blanks(tokenizer):
    special = tokenizer.special
    ids = tokenizer.encode_with_special("a [MASK] b[sMASK].[gMASK]")
    assert ids.dtype == np.int32
    assert [id for id in ids.tolist() if id in special.by_role().values()] == [
        special.mask,
        special.sentence_mask,
        special.document_mask,
    ]
    assert tokenizer.encode_with_special("no blank").tolist() == tokenizer.encode("no blank").tolist()


def test_a_blank_takes_the_space_before_it_and_leaves_the_one_after(sentencepiece_tokenizer, bpe_tokenizer):
    # As in pretraining, where a span holds the space before its first word.
    for tokenizer in (sentencepiece_tokenizer, bpe_tokenizer):
        whole = tokenizer.encode("a that.").tolist()
        before, after = tokenizer.encode("a").tolist(), tokenizer.encode_with_special("[MASK].").tolist()[1:]
        assert whole[: len(before)] == before
        assert whole[-len(after) :] == after
        assert tokenizer.encode_with_special("a [MASK].").tolist() == [*before, tokenizer.special.mask, *after]
        blank_first = tokenizer.encode_with_special("[MASK] a").tolist()
        assert tokenizer.decode(blank_first[1:]).strip() == "a"
        assert tokenizer.decode(blank_first).endswith(" a")


def test_special_tokens_are_shown_by_their_piece(tokenizer):
    ids = list(tokenizer.special.by_role().values())
    assert tokenizer.decode(ids).replace(" ", "") == "".join(tokenizer.piece(id) for id in ids)


@pytest.mark.parametrize("id", [-1, 10**6])
def test_refuses_to_decode_an_id_outside_the_vocabulary(tokenizer, id):
    with pytest.raises(ValueError, match=rf"{id}.* outside the vocabulary, 0\.\.{tokenizer.vocab_size - 1}"):
        tokenizer.decode([5, id])


def test_sentences_end_in_marks_and_newlines_only(tokenizer):
    ends = tokenizer.sentence_ends()
    assert ends.shape == (tokenizer.vocab_size,)
    assert ends.dtype == np.bool_
    assert not ends[list(tokenizer.special.by_role().values())].any()
    assert ends[tokenizer.encode("a.")[-1]]
    assert not ends[tokenizer.encode("a,")[-1]]
    if tokenizer.kind != "wordpiece":
        assert ends[tokenizer.encode("a\n")[-1]]
    assert tokenizer.sentence_ends() is ends


def test_what_stands_for_no_text_is_never_generated_and_ends_no_sentence(tokenizer):
    never = tokenizer.never_generated()
    assert never.shape == (tokenizer.vocab_size,)
    assert never.dtype == np.bool_
    assert never[list(tokenizer.special.by_role().values())].all()
    named = {tokenizer.piece(id) for id in np.flatnonzero(never)}
    assert {"sentencepiece": {"<unk>"}, "bpe": {"[SEP]", "[UNK]"}, "wordpiece": {"[SEP]", "[UNK]"}}[
        tokenizer.kind
    ] <= named
    assert not never[tokenizer.encode("a th. [x] é\n")].any()
    assert not (never & tokenizer.sentence_ends()).any()


def test_every_id_has_a_piece(tokenizer):
    assert all(isinstance(tokenizer.piece(id), str) for id in range(tokenizer.vocab_size))
