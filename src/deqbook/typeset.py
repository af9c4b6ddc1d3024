"""Numbers and formulas for a reader: names such as ``λ_min(ZZᵀ)`` as HTML, and no 3.28e+15.

Names of measurements are plain text, so that a terminal can show them: ``σ_w²``, ``e^{-2κt}``. On a
page :func:`formula` sets their letters in italics and their indices low and high, and holds
together what a line must not break: an index and its letter, a sign and what stands before it.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Iterator

__all__ = ["LEFT", "WHOLE", "formula", "number"]

LEFT = 'style="text-align:left"'
"""For a cell of a table: JupyterLab would set it to the right."""
WHOLE = 'style="text-align:left;white-space:nowrap"'
"""For a cell with a number, which is never broken over two lines."""

#: From here and up to there a number is written without a power of ten.
PLAIN = (1e-3, 1e5)
#: Below this a number is zero.
NOTHING = 1e-300
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MINUS = "\N{MINUS SIGN}"
#: A space at which no line ends, and the mark that keeps two characters on one line.
HARD, JOINED = "\N{NO-BREAK SPACE}", "\N{WORD JOINER}"
#: Signs between two sides; the last strikes one of them out, as in ≠.
SIGNS = "+−·÷/⊗∘=<>≤≥≈⪰⪯∈→↦\N{COMBINING LONG SOLIDUS OVERLAY}"

#: Words that stand in formulas, so that a minus may stand beside them.
OPERATOR = re.compile("cos|dist|exp|log|max|mean|min|rank|sin|sup|tanh|var")
#: Two letters that are a word; others are a product.
TWO_LETTERS = re.compile(
    "an|as|at|be|by|do|go|id|if|im|in|is|it|ln|my|no|of|on|or|pf|pl|re|so|to|tr|up|us|vs|we"
)
#: What follows the letter a where it is a letter; before other words it is the article.
AFTER_A = re.compile("after|at|has|is|moved|moves|stays|tends|vs")

_TOKEN = re.compile(
    r"""
      (?P<code>[A-Za-z]{3,}(?:_[A-Za-z]{4,})+)         # the name of a function
    | (?P<level>[_^])(?P<inner>
          \{(?P<braced>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}  # e^{-2κt}
        | \([^()]*\)                                   # G^(ℓ)
        | (?:min|max|ker|pf|ij|jk)(?![a-z])            # λ_min
        | \d+
        | [A-Za-z][₀-₉]+                               # k^t₂
        | .[\u0300-\u036f]*)
    | (?P<high>[²³¹⁰-ⁿᵀᵏᵗʳˢ]+)
    | (?P<low>[₀-₎ᵢⱼₐ-ₜ]+)
    | (?P<word>(?:[A-Za-z][\u0300-\u036f]*)+)
    | (?P<greek>[α-ωϑϕϵ][\u0300-\u036f]*)
    | (?P<hyphen>-)
    | (?P<prime>'+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def number(x: float) -> str:
    """Write a number for a reader: four digits, or two and a power of ten.

    >>> [number(x) for x in (0.99943, 400.0, 3.282e15, 1e-10, -2.5e-7)]
    ['0.9994', '400', '3.3 × 10¹⁵', '10⁻¹⁰', '−2.5 × 10⁻⁷']
    >>> [number(x) for x in (0.0, math.inf, -math.inf, math.nan)]
    ['0', '∞', '−∞', 'not a number']

    The least positive number stands for "above zero", and is told as zero.

    >>> import sys
    >>> number(sys.float_info.min)
    '0'
    """
    if math.isnan(x):
        return "not a number"
    sign, size = (MINUS if x < 0 else ""), abs(x)
    if math.isinf(size):
        return f"{sign}∞"
    if size < NOTHING:
        return "0"
    if PLAIN[0] <= size < PLAIN[1]:
        # "g" would write the four digits of 12345 as 1.234e+04.
        return sign + (f"{size:.0f}" if size >= 9999.5 else f"{size:.4g}")
    digits, _, power = f"{size:.1e}".partition("e")
    ten = f"10{str(int(power)).translate(RAISED)}"
    digits = digits.removesuffix(".0")
    return f"{sign}{ten}" if digits == "1" else f"{sign}{digits} × {ten}"


def formula(text: str) -> str:
    r"""Set a name that is part words, part mathematics, as HTML.

    Letters that stand alone become italic, ``_`` and ``^`` and Unicode's small digits become
    indices, hyphens between symbols become minus signs. Words stay as they are.

    >>> formula("largest σ_w²")
    'largest <i>σ</i>\u2060<sub><i>w</i></sub>\u2060<sup>2</sup>'
    >>> formula("e^{-2κt}")
    '<i>e</i>\u2060<sup>−2<i>κ</i><i>t</i></sup>'
    >>> formula("a random point of ZZᵀ, L-BFGS-B")
    'a random point of <i>ZZ</i>\u2060<sup>⊤</sup>, L-BFGS-B'
    """
    plain = unicodedata.normalize("NFD", text).replace("𝓛", "ℒ")
    # A space ends an index: ∂_z f is one thing.
    plain = re.sub(r"(∂_(?:\{[^{}]*\}|.)) (?=\w)", rf"\1{JOINED}", plain)
    return "".join(_pieces(_held(plain)))


def _held(text: str) -> str:
    """Let no line begin with a sign, nor part it from a short end: ``q > 0``, ``I − DW``."""
    text = re.sub(rf" (?=[{SIGNS}]|- )", HARD, text)
    text = re.sub(rf"(?<=[|-]){HARD}", JOINED + HARD, text)  # a line may end after these two
    return re.sub(rf"(?:(?<=[{SIGNS}])|(?<={HARD}-)) (?=\S{{1,4}}(?:[\s,.:;)]|$))", HARD, text)


def _pieces(text: str) -> Iterator[str]:
    for m in _TOKEN.finditer(text):
        before, after = text[: m.start()], text[m.end() :]
        if m["code"]:
            yield f"<code>{m[0]}</code>"
        elif m["level"]:
            inner = m["inner"] if m["braced"] is None else m["braced"]
            yield _at("sub" if m["level"] == "_" else "sup", formula(inner))
        elif m["high"]:
            # ᵀ is a transpose wherever it stands, as on the pages.
            yield _at("sup", formula(_full_size(m["high"].replace("ᵀ", "⊤"))))
        elif m["low"]:
            yield _at("sub", formula(_full_size(m["low"])))
        elif m["word"]:
            yield _word(before, m[0], after)
        elif m["greek"]:
            yield f"<i>{_composed(m[0])}</i>"
        elif m["hyphen"]:
            yield MINUS if _is_minus(before, after) else "-"
        elif m["prime"]:
            yield "’" if re.search(r"[A-Za-z]{3,}$", before) else "′" * len(m[0])
        else:
            yield html.escape(m[0])


def _at(tag: str, inner: str) -> str:
    return f"{JOINED}<{tag}>{inner}</{tag}>"


def _full_size(small: str) -> str:
    return unicodedata.normalize("NFKC", small).replace(MINUS, "-")


def _composed(letters: str) -> str:
    return unicodedata.normalize("NFC", letters)


def _word(before: str, piece: str, after: str) -> str:
    """Write a run of Latin letters: a word, a letter, or a product of two."""
    shown = _composed(piece)
    letters = len(re.findall("[A-Za-z]", piece))
    product = (
        letters == 2 and not TWO_LETTERS.fullmatch(piece.lower()) and not re.match(r"_\d", after)
    )
    if product:
        return f"<i>{shown}</i>"
    if letters > 1 or _is_article(before, piece, after):
        return shown
    # L-BFGS-B
    if (
        re.match(r"-[A-Z]{3}", after)
        or re.search(r"[A-Z]{3}-$", before)
        or re.search("[’']$", before)
    ):
        return shown
    return f"<i>{shown}</i>"


def _is_article(before: str, piece: str, after: str) -> bool:
    following = re.match(r" ([a-z]{2,}|[A-Z][A-Za-z]{2,})", after)
    if not following or AFTER_A.fullmatch(following[1]):
        return False
    return piece == "a" or (piece == "A" and not before)


def _is_minus(before: str, after: str) -> bool:
    """Tell a minus sign from a hyphen."""
    if not before or before[-1] in f" {HARD}({{[|‖⟨,÷=":
        return True
    left, right = re.search(r"[A-Za-z]{3,}$", before), re.match(r"[A-Za-z]{3,}", after)
    if left and not OPERATOR.fullmatch(left[0]):
        return False
    short = re.match(r"[A-Za-z]{2}(?![A-Za-z])", after)  # κ-PL, but I-DW
    word = (right and not OPERATOR.fullmatch(right[0])) or (
        short and TWO_LETTERS.fullmatch(short[0].lower())
    )
    return not (word and re.search(r"[\w)]$", before))
