"""Our byte-pair encoding against open_clip's tokenizer."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.clip.tokenizer import EOT, SOT, Tokenizer, clean, split

regex = pytest.importorskip("regex")
SimpleTokenizer = pytest.importorskip("open_clip.tokenizer").SimpleTokenizer

ODD = [
    "",
    "   ",
    "A photo of a DOG.",
    "don't they're I've we'll she'd it's I'm 'tis rock'n'roll",
    "the dogs' o'clock !'s",
    "no. 1, 22nd (1984) 3.14 x² ½ Ⅷ ٣",
    "aquarium_fish __init__",
    "café naïve Ångström e\u0301",
    "straße ΑΘΗΝΑ Москва 日本語のテスト 한국어 עברית हिन्दी",
    "smile 🙂👍🏽 ❤️",
    "tabs\tand\nlines\r\nand\u00a0spaces\u3000wide",
    "“curly” ‘quotes’ „low‟ ʼ",
    "ﬁsh oﬃce Ｗｉｄｅ ｶﾀｶﾅ Ǆ ĳ ŉ",
    "R&amp;D &lt;b&gt; &#39;x&#39; &eacute; AT&T",
    "bell\x07 zero\u200bwidth \ufeffmark",
    "--- ... ?!?! $5.00 100% c++ c# a/b\\c ~`^|",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "word " * 100,
]


@pytest.fixture(scope="module")
def reference() -> SimpleTokenizer:
    return SimpleTokenizer()


@pytest.fixture(scope="module")
def pieces(reference: SimpleTokenizer) -> list[str]:
    """The written forms of all merged tokens but those of other alphabets."""
    written = (token.removesuffix("</w>") for token in reference.encoder)
    return [piece for piece in written if piece.isascii()][188:-2]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_agree(text: str, reference: SimpleTokenizer) -> None:
    assert Tokenizer(77)([text]).tolist() == reference([text]).tolist()


def test_thousands_of_words_agree(pieces: list[str], reference: SimpleTokenizer) -> None:
    words = pieces[::11] + [a + b for a, b in zip(pieces[::23], pieces[5::23], strict=False)]
    assert len(words) > 6000
    assert Tokenizer(77)(words).tolist() == reference(words).tolist()


@given(st.text(st.characters(codec="ascii", min_codepoint=32, exclude_characters="&\x7f")))
def test_any_plain_text_agrees(reference: SimpleTokenizer, text: str) -> None:
    assert Tokenizer(16)([text]).tolist() == reference([text], context_length=16).tolist()


def test_every_sign_is_parted_as_clip_does() -> None:
    pattern = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", regex.I)
    signs = (chr(code) for code in range(sys.maxunicode + 1))
    # The two libraries may know different versions of Unicode; U+0345 is a letter only to
    # `regex` when it ignores case.
    known = (
        s for s in signs if unicodedata.category(s) not in ("Cn", "Cs", "Co") and s != "\u0345"
    )
    for sign in known:
        text = f"a{sign}1!{sign}"
        if not sign.isspace():
            assert split(text) == pattern.findall(text), hex(ord(sign))


def test_splitting_parts_letters_numbers_and_signs() -> None:
    assert split("it's 3rd, no_1!") == ["it", "'s", "3", "rd", ",", "no", "_", "1", "!"]


def test_cleaning_removes_what_a_reader_does_not_see() -> None:
    assert clean(" A&nbsp;&amp;\tB\u2019s ") == "a & b's"


def test_long_texts_are_cut_and_still_end() -> None:
    short, long = Tokenizer(8)(["a dog", "one two three four five six seven eight nine"]).tolist()
    assert short[0] == SOT and short[3] == EOT and short[4:] == [0] * 4
    assert long[0] == SOT and long[-1] == EOT and 0 not in long


def test_special_tokens_cannot_be_written() -> None:
    assert not {SOT, EOT} & set(Tokenizer().encode("<end_of_text><start_of_text>"))


def test_text_that_is_not_unicode_is_taken() -> None:
    assert Tokenizer().encode("caf\udce9") == Tokenizer().encode("caf?")


@pytest.mark.slow
def test_seventy_thousand_words_at_once(pieces: list[str]) -> None:
    words = [a + b for a, b in zip(pieces, pieces[7:] + pieces[:7], strict=True)]
    words += [f"{a} {b}." for a, b in zip(pieces[:26000], reversed(pieces), strict=False)]
    assert len(set(words)) > 69_000
    tokens = Tokenizer(32)(words)
    assert tokens.shape == (len(words), 32)
    assert (tokens[:, 0] == SOT).all() and ((tokens == EOT).sum(1) == 1).all()
