"""Features that the kernel, which weighs all of them alike, cannot do justice to."""

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import ScaleWarning

__all__ = ["warn_of_empty", "warn_of_scales"]

_ROWS = 32
"""From fewer rows little can be said."""
_RATIO = 100.0
"""By how much standard deviations, and ranges, may differ."""
_NARROWEST, _WIDEST = 0.1, 4.0
"""Standard deviations for which the bandwidth for standardized features is of use. Pixels and other columns within [0, 1]
have 0.15 to 0.3; below 0.1, two rows have so much in common that five points of accuracy and more are lost."""
_LISTED = 5


def warn_of_scales(owner: str, X: Floats, names: Sequence[str] | None, *, complete: bool) -> None:
    """Warn of columns that are constant or of very different scales, and of features that are far too wide or narrow.

    Columns of zeros are no concern: that is what scaling makes of constant ones. Where `X` is `complete`, the default kernel
    is as wide as its rows are apart. Where it is the beginning of a stream, the kernel is for standardized features, and
    constant columns may yet vary.
    """
    if len(X) < _ROWS:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        spreads, ranges = X.std(axis=0), np.ptp(X, axis=0)
        usual = float(np.sqrt(np.mean(spreads**2)))
    varies, found = ranges > 0.0, []
    if complete and (constant := np.flatnonzero(~varies & (X[0] != 0.0))).size:
        found.append(f"{_listed(constant, names)} {'is' if len(constant) == 1 else 'are'} constant")
    if varies.any():
        # a column that is seldom other than 0, as a pixel at the rim, is narrow only by its standard deviation
        narrow = varies & (_RATIO * spreads < spreads.max()) & (_RATIO * ranges < ranges.max())
        if narrow.any():
            low, high = int(np.argmin(np.where(narrow, spreads, np.inf))), int(np.argmax(spreads))
            least, most = (f"{spreads[i]:.3g} ({_listed([i], names)})" for i in (low, high))
            found.append(f"standard deviations range from {least} to {most}")
        elif not complete and not _NARROWEST <= usual <= _WIDEST:
            found.append(f"columns have standard deviations of about {usual:.3g}, not 1")
    if found:
        warnings.warn(
            f"{owner}: {'; '.join(found)}; the default kernel suits standardized features: put StandardScaler() before the "
            f"estimator, drop what is constant, or set a kernel",
            ScaleWarning,
            stacklevel=4 if complete else 5,  # whoever has called fit or partial_fit
        )


def warn_of_empty(owner: str) -> None:
    """Warn that nothing was learned: no point was worth keeping, although a constant is not enough."""
    warnings.warn(
        f"{owner}: no point was kept, and every prediction is the same; lower the budget, put StandardScaler() before the "
        f"estimator, or choose a kernel whose width goes with the distances of the rows",
        ScaleWarning,
        stacklevel=3,  # whoever has called fit
    )


def _listed(columns: Iterable[int], names: Sequence[str] | None) -> str:
    """Columns by number, and by name where they have one."""
    shown = [f"{i} ({str(names[i])!r})" if names is not None else str(i) for i in columns]
    more = len(shown) - _LISTED
    text = ", ".join(shown[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"{'column' if len(shown) == 1 else 'columns'} {text}"
