"""Sentences: found where a reader would end them, and cut out of the ids of whole documents."""

import json
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools import sentences
from data_tools.sentences import encode_sentences, sentence_ends
from data_tools.train_tokenizer import train
from megatron_glm.errors import DataError
from megatron_glm.tokenizer import published

# A bar stands where a sentence ends. In each case a reader has no doubt.
ENGLISH = [
    "It rained.| We stayed inside.| Then it stopped.",
    "Where is it?| Here!| Good.",
    "Dr. Smith saw Mr. Jones.| Mrs. Brown did not.",
    "J. R. R. Tolkien wrote it.| C. S. Lewis read it.",
    "The U.S. Army came.| The war ended.",
    "She has lived in the U.S. since 1990.| Her brother has not.",
    "It costs 3.50 dollars.| That is 0.5 more than 3.",
    "He arrived at 5 p.m. on Monday.| Nobody was there.",
    "Bring tools, e.g. a hammer, i.e. something heavy.| Do not be late.",
    "See Fig. 3 and Eq. 4.| Both are old.",
    "Smith et al. found it.| Others did not.",
    "Acme Inc. bought Bolt Ltd. in May.| The price was low.",
    "Gen. Lee and Col. Mustard met Prof. Plum.| They talked.",
    "It was Jan. 5 and windy.| Snow fell.",
    "She lives on St. James Street.| He does not.",
    "No. 5 was sold.| No. 6 was not.",
    "Apples vs. oranges is an old debate.| Let it rest.",
    "“He left.”| She stayed.",
    '"Is it good?" he asked.| She nodded.',
    '"Stop!" he cried.| They stopped.',
    "(It rained.)| Then it stopped.",
    "He said that (quite loudly!) and left.| Nobody minded.",
    "Wait... what?| Nothing.",
    "He paused... and then he went on.| It was late.",
    "What?!| Really?!| Yes.",
    "Visit www.example.com today.| It is free.",
    "The page https://example.com/a.html?b=1.2 is gone.| Use another.",
    "Write to a.b@example.org soon.| We answer.",
    "Version 2.13.0 is out.| It is fast.",
    "The file data.json is missing.| Write it again.",
    "Chapter One\n\n|It was night.| The wind blew.",
    "A Title\n|The text begins here.| It goes on.",
    "This line was broken\nfor its length.| This one was not.",
    "- milk\n|- bread\n|- eggs",
    "1. Open the box.\n|2. Take it out.\n|3. Close it.",
    "First.\n\n\n|Second.\n|Third.",
    "The end\n",
    "It ended.\r\n\r\n|It began.",
    "***\nA star.| Two stars.",
    "He is 5 ft. tall.| She is taller.",
    "I came.| I saw.| I won.",
    "Ph.D. students wrote it.| It was long.",
    "One sentence without a mark",
    "Mt. Everest is high.| Few climb it.",
    "Use pens, paper, etc. in class.| They help.",
    "He moved to Washington, D.C. in May.| She followed.",
    "We met at 9 a.m. on Friday.| It was early.",
    "He died in 44 B.C. in Rome.| It was March.",
    "It was built ca. 1900 in brick.| It stands.",
    "John Smith Jr. and his son left.| They returned.",
    "See p. 5 and vol. 2 of it.| Read both.",
    "It was the 1990s.| In those days it was cheap.",
    "He said 'no.'| Then he left.",
    "She has a B.A. and an M.D. from Yale.| Her brother has none.",
    "He ran 5 km.| She ran 10 km.| They slept.",
    "It weighs approx. 5 lbs. without the lid.| Lift it.",
    "He works for Amazon.com.| She does not.",
    "The temperature fell to -3.5 degrees.| Ice formed.",
    "[He laughed.]| Nobody else did.",
    "Sales rose 4.5 percent, the company said.| Profit fell.",
]
CHINESE = [
    "今天下雨。|我们没出去。|后来雨停了。",
    "你去哪儿？|回家！|好的。",
    "“他走了。”|她没走。",
    "他说：“你好。”|她笑了。",
    "“你去吗？”，他问。|她点头。",
    "「我不去。」|他走了。",
    "『真的吗？！』|没人回答。",
    "（下雨了。）|后来停了。",
    "《你是谁？》是一本书。|我看过。",
    "真的吗？！|不会吧！！！|是的。",
    "他没有说话……|天黑了。",
    "圆周率是3.14。|它没有尽头。",
    "价格是1,234.5元。|不贵。",
    "第一段\n|第二段开始了。|结束了。",
    "标题\n\n|正文在这里。",
    '他说："你好。"|她没回答。',
    "你好!|你是谁?|我不知道。",
    "一、准备；二、开始，三、结束。|就这样。",
    "他问，“是谁？”|没有人。",
]
MIXED = [
    "He said hi.| 是吗？|Yes.| 当然。",
    "我在U.S.工作。|很远。",
    "这是GLM。|It fills blanks.| 真好！",
    "他说 OK。|Then he left.",
    "Python 3.11发布了。|We use it.",
]
CASES = [*ENGLISH, *CHINESE, *MIXED]
MISSED = [
    "It is cold.| Snow fell.",
    "We chose plan B.| Then we left.",
    "Yahoo! is a company.| It is old.",
    "it works.| i like it.",
    "He called Mr.\nSmith.| Nobody answered.",
]
LINES = [
    "The tokenizer keeps every space, and every newline too.",
    "A model that fills blanks reads the text on both sides of each blank.",
    "What does a sentence end with? A full stop; a question mark: or this!",
] * 5
TEXTS = st.lists(st.text(st.sampled_from('ab A.!?…\n\r\t 。”“"」你好é😀½각\u200d\u3000(1)'), max_size=40), max_size=4)


@pytest.fixture(scope="module", params=["sentencepiece", "wordpiece", "gpt2", "roberta"])
def tokenizer(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("vocabulary")
    if request.param == "sentencepiece":
        return train(LINES, 300, block_mask=False)
    if request.param == "wordpiece":
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,?!;。”你好"]
        (directory / "vocab.txt").write_text("\n".join([*pieces, *(f"##{letter}" for letter in pieces[5:31])]) + "\n")
        return published.bert_uncased(directory / "vocab.txt")
    return byte_level_bpe(directory, request.param)


def byte_level_bpe(directory, name):
    signs = [chr(c) for c in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(256, 256 + 68)]]
    extra = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if name == "roberta" else ["<|endoftext|>"]
    # A piece of the last byte of a Chinese full stop and the first of a quote: it reaches over the end of a sentence.
    pieces = [*signs, "th", "Ĥâ", *extra]
    (directory / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (directory / "merges.txt").write_text("#version: 0.2\nt h\nĤ â\n")
    return getattr(published, name)(directory / "vocab.json", directory / "merges.txt")


def split(text):
    ends = sentence_ends(text).tolist()
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("case", CASES)
def test_a_sentence_ends_where_a_reader_ends_it(case):
    assert split(case.replace("|", "")) == case.split("|")


def test_of_the_sentences_of_all_cases_nearly_all_are_found_and_nearly_all_found_are_right():
    found = right = expected = 0
    for case in [*CASES, *MISSED]:
        ours, theirs = sentence_bounds(split(case.replace("|", ""))), sentence_bounds(case.split("|"))
        found, expected, right = found + len(ours), expected + len(theirs), right + len(ours & theirs)
    assert right / found > 0.95, "precision"
    assert right / expected > 0.95, "recall"


def sentence_bounds(parts):
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return set(zip([0, *ends], ends, strict=False))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS.map("".join))
def test_sentences_tile_the_text_and_each_holds_a_word(text):
    parts = split(text)
    assert "".join(parts) == text
    assert all(any(sign.isalnum() for sign in part) for part in parts) or len(parts) <= 1
    assert sentence_ends(text).dtype == np.int64


def test_a_long_document_is_split_as_its_parts_are(monkeypatch):
    text = " ".join(case.replace("|", "") for case in ENGLISH) * 3
    whole = split(text)
    monkeypatch.setattr(sentences, "_BLOCK", 256)
    assert split(text) == whole


@pytest.mark.parametrize(
    "text", ["word ", "x", "!", "。", "“。”", '"。"', "\n", " ", "\n ", ("!" * 499) + " ", "汉", "…)"]
)
def test_the_time_is_linear_whatever_the_text(text):
    start = time.monotonic()
    ends = sentence_ends(text * (300_000 // len(text)))
    assert len(ends) <= 1 or text == "“。”"
    assert time.monotonic() - start < 10  # quadratic time would take minutes


def test_without_nupunkt_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nupunkt", None)
    sentences.load_splitter.cache_clear()
    with pytest.raises(DataError, match=r"--sentences: .* nupunkt, which is not installed; pip install"):
        sentence_ends("A text.")


def tokens_of_sentences(tokenizer, text):
    """How many tokens each sentence has, token by token."""
    _, _, offsets = tokenizer.encode_with_offsets([text])
    ends = sentence_ends(text).tolist()
    words = [len(text[:end].rstrip()) for end in ends]
    counts = [0] * len(ends)
    sentence = 0
    for start, stop in offsets.tolist():
        while sentence < len(ends) - 1 and not (start < words[sentence] or start < ends[sentence] >= stop):
            sentence += 1
        counts[sentence] += 1
    return [count for count in counts if count]


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXTS.map("".join), max_size=4))
def test_the_ids_are_those_of_the_whole_document_and_sentences_tile_them(tokenizer, texts):
    encoded = encode_sentences(tokenizer, texts)
    expected = [tokenizer.encode(text) for text in texts]
    assert encoded.ids.dtype == np.int32
    assert encoded.ids.tolist() == [id for ids in expected for id in ids.tolist()]
    assert encoded.lengths.tolist() == [len(ids) for ids in expected]
    assert encoded.sentence_lengths.tolist() == [n for text in texts for n in tokens_of_sentences(tokenizer, text)]
    assert encoded.sentence_lengths.min(initial=1) > 0
    of_document = np.split(encoded.sentence_lengths, np.cumsum(encoded.sentences)[:-1]) if texts else []
    assert [each.sum() for each in of_document] == encoded.lengths.tolist()


def test_sentences_are_cut_where_they_end_in_the_text(tokenizer):
    text = "A dog runs.\nIs it good? 你好。 It is."
    encoded = encode_sentences(tokenizer, [text, "", "No mark"])
    cuts = np.cumsum(encoded.sentence_lengths[: encoded.sentences[0]])
    parts = [tokenizer.decode(ids) for ids in np.split(encoded.ids[: encoded.lengths[0]], cuts[:-1])]
    if tokenizer.kind == "wordpiece":
        assert parts == ["a dog runs.", "is it good?", "你 好 。", "it is."]
    else:
        # Only at the start of a whole text `decode` takes a space away.
        assert [part.lstrip(" ") for part in parts] == ["A dog runs.\n", "Is it good?", "你好。", "It is."]
    assert encoded.sentences.tolist() == [4, 0, 1]


def test_a_token_that_reaches_over_the_end_of_a_sentence_belongs_to_the_one_it_begins_in(tmp_path):
    tokenizer = byte_level_bpe(tmp_path, "gpt2")
    text = "三。“三"  # of three bytes each, and a space goes in front
    assert [tokenizer.piece(id) for id in tokenizer.encode(text).tolist()][6] == "Ĥâ"
    assert encode_sentences(tokenizer, [text]).sentence_lengths.tolist() == [7, 5]
