import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import END, TURN, TURN_END, byte_tokenizer

from unmask.errors import RequestError
from unmask.text import Decoder, StopScanner, Stream, render

PLAIN = byte_tokenizer()


def byte_ids(text: str) -> list[int]:
    return list(text.encode())


# --- prompts ------------------------------------------------------------------------------------------------------


def test_a_prompt_goes_through_the_template_once():
    ids = render(PLAIN, "hi")
    assert ids == [TURN, *byte_ids("user\nhi"), TURN_END, *byte_ids("\n"), TURN, *byte_ids("assistant\n")]
    assert ids == render(PLAIN, [{"role": "user", "content": "hi"}])


def test_raw_takes_the_prompt_as_it_is():
    assert render(PLAIN, "hi", raw=True) == byte_ids("hi")
    assert render(PLAIN, "", raw=True) == []


def test_without_a_template_a_text_is_taken_as_it_is_and_messages_are_refused():
    tokenizer = byte_tokenizer(template=None)
    assert render(tokenizer, "hi") == byte_ids("hi")
    with pytest.raises(RequestError, match="no chat template"):
        render(tokenizer, [{"role": "user", "content": "hi"}])


class WithBos:
    """A tokenizer that puts its beginning-of-text token 1 in front, as Llama's does."""

    bos_token, chat_template = "<s>", "yes"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "<s>" + messages[0]["content"]

    def encode(self, text, add_special_tokens=True):
        ids = [1] if text.startswith("<s>") else []
        return [1] * add_special_tokens + ids + byte_ids(text.removeprefix("<s>"))


@pytest.mark.parametrize("prompt, raw", [("a", False), ("a", True), ("<s>a", True)])
def test_o2_11_one_bos_only(prompt, raw):
    assert render(WithBos(), prompt, raw) == [1, *byte_ids("a")]


@pytest.mark.parametrize(
    "template, message",
    [("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{% if %}", "refuses")],
)
def test_a_template_that_fails_is_an_error_of_the_request(template, message):
    with pytest.raises(RequestError, match=message) as caught:
        render(byte_tokenizer(template=template), [{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_o4_04_no_messages_are_an_error():
    with pytest.raises(RequestError, match="messages is empty"):
        render(PLAIN, [])
    with pytest.raises(RequestError, match="raw takes one text"):
        render(PLAIN, [{"role": "user", "content": "x"}], raw=True)


# --- characters ---------------------------------------------------------------------------------------------------

FAMILY = "né 👩‍👩‍👧 漢字 e\u0301"


def test_o4_08_pieces_end_where_characters_end():
    decoder, pieces = Decoder(PLAIN), []
    for token in byte_ids(FAMILY):
        piece = decoder.push(token)
        pieces.append("" if piece is None else piece)
    assert "".join(pieces) == FAMILY and decoder.flush() == ""
    assert [len(piece) for piece in pieces].count(1) == len(FAMILY)


def test_o4_08_a_forced_cut_inside_a_character_shows_once():
    stream = Stream(PLAIN, ())
    shown = "".join(stream.push(token) for token in byte_ids("a漢")[:-1])
    assert shown == "a" and stream.finish() == "\ufffd" == PLAIN.decode(byte_ids("漢")[:-1])
    assert stream.text == "a\ufffd" and stream.released == 3


class Words:
    """A tokenizer of words that, like SentencePiece, drops the blank before the first word it is asked to decode."""

    def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces):
        return " ".join("" if token == 0 and skip_special_tokens else f"w{token}" for token in tokens)


def test_a_piece_may_depend_on_its_left_neighbour():
    decoder = Decoder(Words())
    assert [decoder.push(token) for token in (1, 2, 0, 3)] == ["w1", " w2", " ", " w3"]


@given(st.text(max_size=20), st.integers(0, 3))
def test_o4_08_joined_pieces_are_the_decoded_text(text, cut):
    ids = byte_ids(text)[: max(0, len(text.encode()) - cut)]
    stream = Stream(PLAIN, ())
    joined = "".join([*(stream.push(token) for token in ids), stream.finish()])
    assert joined == stream.text == PLAIN.decode(ids, clean_up_tokenization_spaces=False)
    assert stream.released == len(ids)


def test_special_tokens_are_not_shown():
    stream = Stream(PLAIN, ())
    assert [stream.push(token) for token in [97, TURN, 98, END]] == ["a", "", "b", ""]


# --- stop strings -------------------------------------------------------------------------------------------------


def scan(text: str, stops: list[str], sizes: list[int]) -> tuple[str, bool]:
    scanner, shown, at = StopScanner(stops), "", 0
    for size in [*sizes, len(text)]:
        shown += scanner.push(text[at : at + size])
        at += size
    return shown + scanner.flush(), scanner.stopped


@pytest.mark.parametrize(
    "text, stops, shown",
    [
        ("abc DEFGHIJ tail", ["DEFGHIJ"], "abc "),
        ("one two three", ["three", "two"], "one "),
        ("aaab", ["aab"], "a"),
        ("ababac", ["abac"], "ab"),
        ("xDEFG", ["EF", "DEF"], "x"),
        ("xDEFG", ["DEFGH", "EF"], "xD"),
        ("nothing", ["z", ""], "nothing"),
        ("almost sto", ["stop"], "almost sto"),
    ],
)
def test_o4_07_the_first_complete_stop_string_ends_the_text(text, stops, shown):
    for sizes in ([], [1] * len(text), [3, 2, 5]):
        assert scan(text, stops, sizes) == (shown, shown != text)


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(0, 4), max_size=6),
)
def test_o4_07_pieces_do_not_matter_and_nothing_of_a_stop_is_shown(text, stops, sizes):
    shown, stopped = scan(text, stops, sizes)
    assert (shown, stopped) == scan(text, stops, [1] * len(text))
    assert text.startswith(shown) and stopped == any(stop in text for stop in stops)
    assert not any(stop in shown for stop in stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_o5_13_what_was_shown_is_never_taken_back(text, stops):
    scanner, shown = StopScanner(stops), ""
    final = scan(text, stops, [])[0]
    for letter in text:
        shown += scanner.push(letter)
        assert final.startswith(shown)


def test_o4_07_tokens_before_a_stop_are_kept():
    """A token that reaches into the stop string is not part of the answer, though its text before the stop is."""
    tokenizer = byte_tokenizer("c D", "GHI")
    ids = [97, 98, 261, 69, 70, 262, 74]
    assert tokenizer.decode(ids) == "abc DEFGHIJ"
    stream = Stream(tokenizer, ["DEFGHIJ"])
    pieces = [stream.push(token) for token in ids]
    assert pieces == ["a", "b", "c ", "", "", "", ""] and stream.stopped and stream.finish() == ""
    assert stream.text == "abc " and stream.released == 2
