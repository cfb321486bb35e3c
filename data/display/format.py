"""The texts of numbers in tables, charts and pages."""

from collections.abc import Callable

MISSING = "–"
"""The text of a number that does not exist."""


def percent(share: float | None) -> str:
    """Return a share in percent with one decimal and without a percent sign: 0.831 is "83.1".

    The text for None is MISSING, a dash.
    """
    return MISSING if share is None else f"{100 * share:.1f}"


def signed_points(share: float) -> str:
    """Return a difference of two shares in percentage points: 0.05 is "+5.0"."""
    return f"{100 * share:+.1f}"


def signed(value: float) -> str:
    """Return a number with its sign and two decimals: 0.5 is "+0.50"."""
    return f"{value:+.2f}"


def interval(
    mean: float,
    low: float | None,
    high: float | None,
    format_number: Callable[[float], str] = percent,
) -> str:
    """Return a mean and the ends of its interval as text, such as "83.1 [80.0, 85.7]".

    If `low` or `high` is None, the text has only the mean.
    """
    if low is None or high is None:
        return format_number(mean)
    return f"{format_number(mean)} [{format_number(low)}, {format_number(high)}]"


def whole_percent(share: float) -> str:
    """Return a share in percent with a percent sign, and a decimal if needed: 0.5 is "50 %"."""
    in_percent = 100 * share
    is_whole_number = abs(in_percent - round(in_percent)) < 1e-6
    if is_whole_number:
        return f"{in_percent:.0f} %"
    return f"{in_percent:.1f} %"


def short_number(value: float) -> str:
    """Return a short text of a number, such as "12,000", "0.05", "2e-5" or "−3".

    It has at most four significant digits, or from 1,000 on no decimals.
    """
    text = f"{value:.4g}".replace("e-0", "e-") if abs(value) < 1000 else f"{value:,.0f}"
    if value < 0:
        return f"−{text[1:]}"  # a minus sign instead of the hyphen
    return text


def with_minus_signs(text: str) -> str:
    """Return a text of numbers in which hyphens are replaced by minus signs."""
    return text.replace("-", "−")
