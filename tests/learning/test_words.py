# pyright: basic
"""Tokens in their words and among their neighbours, in any script and however long."""

from __future__ import annotations

from tintformer.learning.words import LEFT, RIGHT, InContext, Passage, distinct_words

TOKENS = ["The", " Ver", "re", "ll", ",", " or", " Ver", "re", "ll", "."]


def test_what_gained_is_shown_in_its_word_and_once() -> None:
    found = distinct_words(TOKENS, [8, 3, 1, 5, 4], 9)
    assert [(context.word, position) for context, position in found] == [
        ("Verre[ll]", 8),
        ("[Ver]rell", 1),
        ("or", 5),
        (",", 4),
    ]
    assert distinct_words(TOKENS, iter([8, 3, 1, 5, 4]), 2) == found[:2] and distinct_words(TOKENS, [], 2) == []


def test_a_word_stands_among_its_neighbours() -> None:
    passage = Passage(TOKENS)
    assert passage.at(3) == InContext(left="The ", before="Verre", token="ll", after="", right=", or")
    assert str(passage.at(1)) == "The [Ver]rell, or"
    assert str(passage.at(0)) == "[The] Verrell, or" and str(passage.at(9)) == "Verrell, or Verrell[.]"


def test_white_space_and_pieces_of_a_character_stay_as_they_are() -> None:
    passage = Passage(["Dear", " ", "\n\n", " Ada", "", "m", "."])
    assert [passage.at(position).token for position in range(7)] == ["Dear", " ", "\n\n", "Ada", "", "m", "."]
    assert passage.at(2).word == "\n\n" and passage.at(5).word == "Ada[m]"
    assert passage.at(4).word == "" and str(passage.at(4)) == "Dear \n\n Ada[]m."


def test_letters_with_marks_and_scripts_without_spaces() -> None:
    assert (
        Passage(["\u0939\u093f", "\u0928\u094d", "\u0926\u0940"]).at(1).word == "\u0939\u093f[\u0928\u094d]\u0926\u0940"
    )
    long = Passage(["\u6c34"] * 200).at(100)
    assert (len(long.left), len(long.before), len(long.after), len(long.right)) == (LEFT, LEFT, RIGHT, RIGHT)
    assert len(str(Passage(["a" * 5000, "b" * 9, "c" * 5000]).at(1))) < 100


def test_neighbours_are_whole_words_where_there_are_spaces() -> None:
    words = [f" word{number}" for number in range(10, 30)]
    context = Passage(words).at(10)
    assert context == InContext(left="word18 word19 ", before="", token="word20", after="", right=" word21")
