"""The published vocabularies: special ids of the original GLM, text as their own tokenizers cut it."""

import math

import pytest

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer import published
from megatron_glm.tokenizer.special import SpecialTokens

TEXTS = [
    "The quick brown fox doesn't jump over 1,234 lazy dogs; why?",
    "Naïve café: “quotes”, émigrés and 世界。",
    "tabs\tand\n\nnewlines  with   spaces",
    "antidisestablishmentarianism http://example.org/a_b?c=1#d",
]


@pytest.fixture(scope="session")
def bert(shared):
    return published.bert_uncased(shared("vocab/bert-base-uncased-vocab.txt"), block_mask=True)


@pytest.fixture(scope="session")
def gpt2(shared):
    return published.gpt2(shared("vocab/gpt2-vocab.json"), shared("vocab/gpt2-merges.txt"), block_mask=True)


@pytest.fixture(scope="session")
def roberta(shared):
    return published.roberta(shared("vocab/roberta-vocab.json"), shared("vocab/roberta-merges.txt"), block_mask=True)


@pytest.fixture(scope="session")
def chinese(shared):
    return published.chinese(shared("vocab/cog-pretrain.model"), block_mask=True)


IDS = {
    "bert": (SpecialTokens(101, 0, 103, 30525, 30524, 30522, 30523, 30526), 30592),
    "gpt2": (SpecialTokens(50259, 50256, 50260, 50264, 50263, 50257, 50258, 50265), 50304),
    "roberta": (SpecialTokens(0, 2, 50264, 50268, 50267, 50265, 50266, 50269), 50304),
    "chinese": (SpecialTokens(50002, 50000, 50003, 50008, 50009, 50006, 50007, 50010), 50048),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", IDS)
def test_special_ids_are_those_of_the_release(request, name):
    tokenizer = request.getfixturevalue(name)
    special, padded = IDS[name]
    assert tokenizer.special == special
    assert tokenizer.vocab_size == special.block_mask + 1
    assert math.ceil(tokenizer.vocab_size / 128) * 128 == padded


@pytest.mark.golden
@pytest.mark.parametrize("name", IDS)
def test_spelled_special_tokens_are_plain_text_in_the_real_vocabularies(request, name):
    tokenizer = request.getfixturevalue(name)
    text = "[MASK] [gMASK][sMASK] <|endofpiece|> <|startofpiece|> <|endoftext|> <s> </s> <mask> [CLS] [PAD] [dBLOCK] x"
    ids = tokenizer.encode(text)
    assert not set(tokenizer.special.by_role().values()) & set(ids.tolist())
    decoded = tokenizer.decode(ids)
    assert decoded.lower().replace(" ", "") == text.lower().replace(" ", "")
    assert tokenizer.kind == "wordpiece" or decoded == text


@pytest.mark.golden
def test_bert_cuts_text_as_transformers_does(bert, shared):
    transformers = pytest.importorskip("transformers")
    oracle = transformers.BertTokenizer(vocab=str(shared("vocab/bert-base-uncased-vocab.txt")))
    for text in TEXTS:
        assert bert.encode(text).tolist() == oracle.encode(text, add_special_tokens=False)


@pytest.mark.golden
@pytest.mark.parametrize(("name", "oracle_name"), [("gpt2", "GPT2Tokenizer"), ("roberta", "RobertaTokenizer")])
def test_bpe_cuts_text_as_transformers_does_with_a_space_in_front(request, shared, name, oracle_name):
    transformers = pytest.importorskip("transformers")
    tokenizer = request.getfixturevalue(name)
    files = {"vocab": str(shared(f"vocab/{name}-vocab.json")), "merges": str(shared(f"vocab/{name}-merges.txt"))}
    oracle = getattr(transformers, oracle_name)(**files, add_prefix_space=True)
    for text in TEXTS:
        assert tokenizer.encode(text).tolist() == oracle.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.golden
def test_roberta_reads_the_role_behind_its_own_spelling(roberta):
    ids = roberta.encode_with_special("Paris is the [MASK] of France.")
    assert [roberta.piece(id) for id in ids] == ["ĠParis", "Ġis", "Ġthe", "<mask>", "Ġof", "ĠFrance", "."]


@pytest.mark.golden
def test_text_behind_a_blank_gets_no_space_that_it_has_not(chinese):
    def pieces(text):
        return [chinese.piece(id) for id in chinese.encode_with_special(text)]

    assert pieces("北京是[MASK]的首都")[-2:] == ["的", "首都"]
    assert pieces("Paris is [MASK] of  France.")[-5:] == ["[MASK]", "▁of", "▁Fran", "ce", "."]
    assert pieces("Paris[MASK].\nx")[-3:] == ["[MASK]", ".", "▁x"]
    assert pieces("[MASK] a")[-1] == "▁a"
    for text in ("北京是[MASK]的首都", "Paris is[MASK] of France.", "[MASK] a[MASK]."):
        assert chinese.decode(chinese.encode_with_special(text)) == text


@pytest.mark.golden
def test_pieces_that_no_text_has_are_never_generated(request):
    numbers = {"bert": 4 + 995 + 5, "gpt2": 1 + 9, "roberta": 5 + 3 + 5, "chinese": 3 + 11}
    for name, number in numbers.items():
        assert request.getfixturevalue(name).never_generated().sum() == number
    bert, roberta = request.getfixturevalue("bert"), request.getfixturevalue("roberta")
    assert bert.never_generated()[[id for id in range(999) if bert.piece(id).startswith("[unused")]].all()
    assert roberta.never_generated()[50261:50264].all()


@pytest.mark.golden
def test_chinese_marks_end_sentences(chinese, gpt2):
    assert chinese.sentence_ends()[chinese.encode("世界。")[-1]]
    assert gpt2.sentence_ends()[gpt2.encode("end.\n")[-1]]


def test_without_block_mask_there_is_no_such_id(bpe_files, bert_file):
    for tokenizer in (published.gpt2(*bpe_files), published.bert_uncased(bert_file)):
        assert tokenizer.special.block_mask is None
        assert "[dBLOCK]" not in {tokenizer.piece(id) for id in range(tokenizer.vocab_size)}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"no\.txt': No such file"):
        published.bert_uncased(tmp_path / "no.txt")


def test_a_vocabulary_without_its_special_pieces_is_refused(tmp_path, bpe_files):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(TokenizerError, match=r"the piece \[PAD\] is missing; is --kind right"):
        published.bert_uncased(tmp_path / "vocab.txt")
    with pytest.raises(TokenizerError, match="the piece </s> is missing"):
        published.roberta(*bpe_files)


def test_a_repeated_piece_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\na\na\n")
    with pytest.raises(TokenizerError, match="occurs twice"):
        published.bert_uncased(tmp_path / "vocab.txt")


def test_broken_bpe_files_are_named(tmp_path, bpe_files):
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"vocab\.json' and '.*' are no BPE"):
        published.gpt2(tmp_path / "vocab.json", bpe_files[1])


def test_a_file_that_is_no_sentencepiece_model_is_named(tmp_path):
    (tmp_path / "x.model").write_bytes(b"no")
    with pytest.raises(TokenizerError, match=r"x\.model': not a SentencePiece model"):
        published.chinese(tmp_path / "x.model")
