"""Why a client was left out, in words that hold the numbers: its score, and the cut that it missed."""

from __future__ import annotations


def against_cut(score: float, cut: float) -> str:
    """score −0.31 below the cut at 0.02; above it, where low scores are good."""
    value, bound = apart(score, cut)
    if value == bound:
        return f"score {value} at the cut"
    return f"score {value} {'below' if score < cut else 'above'} the cut at {bound}"


def apart(*numbers: float) -> list[str]:
    """Numbers as text, with enough digits to distinguish them."""
    for digits in range(2, 16):
        words = [f"{float(f'{one:.{digits}g}'):.15g}".replace("-", "−") for one in numbers]  # 190, not 1.9e+02
        if len(set(words)) == len(set(numbers)):
            break
    return words
