"""What is kept of a docstring, and what is not."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.prose import clean, is_sentence, paragraphs, sentence_share, sentences


def kept(docstring):
    return [text for part in paragraphs(inspect.cleandoc(docstring)) if (text := clean(part))]


def test_prose_is_kept_and_wrapped_lines_are_joined():
    assert kept("""
        Compute the answer from what is known.

        The answer is cached, so that the second call
        returns it at once.
        """) == [
        "Compute the answer from what is known.",
        "The answer is cached, so that the second call returns it at once.",
    ]


def test_numpy_tables_are_dropped_and_notes_are_kept():
    assert kept("""
        Draw samples from a distribution.

        Parameters
        ----------
        low : float
            Lower boundary of the output interval. All values are above it.

        Returns
        -------
        out : ndarray
            The drawn samples are returned here.

        Notes
        -----
        The density is constant over the interval.

        See Also
        --------
        randint : Draws from the integers instead.
        """) == ["Draw samples from a distribution.", "The density is constant over the interval."]


def test_google_tables_are_dropped():
    assert kept("""
        Opens a connection to the server.

        Args:
            host (str): The name of the server to talk to.
            port: The port of the server to talk to.

        Returns:
            The connection that was opened by this call.

        The connection is closed when the block ends.
        """) == ["Opens a connection to the server.", "The connection is closed when the block ends."]


def test_field_lists_are_dropped():
    assert kept("""
        Opens a connection to the server.

        :param host: The name of the server to talk to,
            as it is known in the network.
        :returns: The connection that was opened here.
        """) == ["Opens a connection to the server."]


def test_code_is_dropped():
    assert kept("""
        Here is a sentence before the code.

        >>> print("This looks like a sentence.")
        This looks like a sentence.

        A literal block follows after this sentence::

            The block is code. It looks like prose.

        .. code-block:: python

            # A comment is no prose, though it ends well.

        ```
        Fenced text is code as well, whatever it says.
        ```

        The last sentence is kept as it is.
        """) == ["Here is a sentence before the code.", "The last sentence is kept as it is."]


def test_admonitions_are_kept():
    assert kept("""
        .. note:: This function is slow for large inputs.

        .. versionadded:: 1.4 The option was added here.
        """) == ["This function is slow for large inputs."]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("See :class:`~package.Thing` for the whole story.", "See package.Thing for the whole story."),
        ("The ``flag`` is set *before* the **loop** starts.", "The flag is set before the loop starts."),
        ("Read `the manual <manual.html>`_ before use.", "Read the manual before use."),
        ("Read [the manual](manual.md) before any use.", "Read the manual before any use."),
        ("This was shown by others [1]_.", "This was shown by others."),
        ("Use the |name| of the thing.", "Use the name of the thing."),
    ],
)
def test_markup_is_taken_off(marked, plain):
    assert clean(marked) == plain


@pytest.mark.parametrize(
    "text",
    [
        "too short.",
        "no capital letter at the start.",
        "The end of this one is missing",
        "Set x = y + z before the call.",
        "Call foo(a, b), bar[c_d] and baz.qux() now.",
        "Go to https://example.org for the rest of it.",
    ],
)
def test_what_is_no_sentence_of_a_language_is_dropped(text):
    assert clean(text) == ""


def test_the_longest_run_of_sentences_is_kept():
    text = "One short sentence is here. Then x = 1 breaks it. Two longer sentences follow this one. They are both kept."
    assert clean(text) == "Two longer sentences follow this one. They are both kept."


def test_sentences_are_parted_without_losing_a_mark():
    text = 'He said "Stop it now!" Then he left (at last.) "Why?" she asked... And so on.'
    assert " ".join(sentences(text)) == text
    assert sentences(text)[0] == 'He said "Stop it now!"'


def test_a_sentence_has_a_capital_a_full_stop_and_four_words():
    assert is_sentence("This is a sentence.")
    assert is_sentence('"Is this one too?"')
    assert not is_sentence("This is not.")


def test_the_share_is_taken_of_bytes():
    assert sentence_share("This is a sentence.") == 1.0
    assert sentence_share("This is a sentence.\nno sentence at all") == 19 / 38
    assert sentence_share("") == 0.0


@given(st.text(st.sampled_from("Ab. \n:>`*_-[](\t")))
def test_any_text_can_be_cleaned(text):
    for part in kept(text):
        assert sentence_share(part) > 0.9
