"""Colors that remain distinct with any kind of color vision."""

from collections.abc import Sequence

__all__ = ["VIRIDIS", "Color", "blend", "class_colors", "rgb", "viridis"]

# Okabe and Ito's palette without black, which is used for dictionary points and invisible on a dark page
_OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
VIRIDIS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")

Color = tuple[int, int, int]


def rgb(text: str) -> Color:
    """Parse a color from its six hexadecimal digits.

    >>> rgb("#0072B2")
    (0, 114, 178)
    """
    red, green, blue = (int(text[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def blend(low: Color, high: Color, share: float) -> Color:
    """Interpolate between two colors."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return red, green, blue


def viridis(share: float) -> Color:
    """The color at a position from 0 to 1.

    >>> viridis(0.0) == rgb(VIRIDIS[0]), viridis(1.0) == rgb(VIRIDIS[-1])
    (True, True)
    """
    at = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(at), len(VIRIDIS) - 2)
    return blend(rgb(VIRIDIS[low]), rgb(VIRIDIS[low + 1]), at - low)


def class_colors(count: int) -> Sequence[str]:
    """One color per class: Okabe and Ito's palette if it suffices, otherwise steps of viridis.

    >>> list(class_colors(2))
    ['#0072B2', '#E69F00']
    """
    if count <= len(_OKABE_ITO):
        return _OKABE_ITO[:count]
    return ["#{:02x}{:02x}{:02x}".format(*viridis(n / (count - 1))) for n in range(count)]
