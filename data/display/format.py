"""The texts of numbers in tables, charts and pages."""

from collections.abc import Callable

MISSING = "–"
"""The text of a number that does not exist."""


def percent(share: float | None) -> str:
    """Return a share of 1 in percent with one decimal and without a sign: 0.831 is "83.1"."""
    return MISSING if share is None else f"{100 * share:.1f}"


def signed_points(share: float) -> str:
    """Return a difference of two shares in percentage points: 0.05 is "+5.0"."""
    return f"{100 * share:+.1f}"


def signed(value: float) -> str:
    """Return a number with its sign and two decimals: 0.5 is "+0.50"."""
    return f"{value:+.2f}"


def interval(
    mean: float, low: float | None, high: float | None, form: Callable[[float], str] = percent
) -> str:
    """Return a mean and the ends of its interval as text, such as "83.1 [80.0, 85.7]".

    `form` formats each number. If an end is None, the text has only the mean.
    """
    if low is None or high is None:
        return form(mean)
    return f"{form(mean)} [{form(low)}, {form(high)}]"


def whole_percent(share: float) -> str:
    """Return a share of 1 with a percent sign, and a decimal if needed: "50 %", "12.5 %"."""
    in_percent = 100 * share
    if abs(in_percent - round(in_percent)) < 1e-6:
        return f"{in_percent:.0f} %"
    return f"{in_percent:.1f} %"


def short_number(value: float) -> str:
    """Return a number with at most four significant digits: 12,000; 0.05; 2e-5; −3."""
    text = f"{value:.4g}".replace("e-0", "e-") if abs(value) < 1000 else f"{value:,.0f}"
    return f"−{text[1:]}" if value < 0 else text


def with_minus_signs(text: str) -> str:
    """Return a text of numbers with minus signs in place of hyphens, as pages write them."""
    return text.replace("-", "−")
