"""Warnings about features that need scaling."""

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import ScaleWarning

__all__ = ["warn_of_empty", "warn_of_scales"]


def warn_of_scales(owner: str, X: Floats, names: Sequence[str] | None, *, complete: bool) -> None:
    """Warn about constant columns, columns of very different scales, and features far from standardized.

    Columns of zeros are fine: scaling produces them from constant columns. If `X` is `complete`, the default kernel adapts to
    the distances between its rows. If it is the beginning of a stream, the kernel assumes standardized features, and constant
    columns may yet vary.
    """
    if len(X) < 32:  # too few to tell
        return
    with np.errstate(over="ignore", invalid="ignore"):
        spreads, ranges = X.std(axis=0), np.ptp(X, axis=0)
        usual = float(np.sqrt(np.mean(spreads**2)))
    varies, found = ranges > 0.0, []
    if complete and (constant := np.flatnonzero(~varies & (X[0] != 0.0))).size:
        found.append(f"{_listed(constant, names)} {'is' if len(constant) == 1 else 'are'} constant")
    if varies.any():
        # a column that is rarely nonzero, such as a pixel at the edge, only appears narrow by its standard deviation
        narrow = varies & (100.0 * spreads < spreads.max()) & (100.0 * ranges < ranges.max())
        if narrow.any():
            low, high = int(np.argmin(np.where(narrow, spreads, np.inf))), int(np.argmax(spreads))
            least, most = (f"{spreads[i]:.3g} ({_listed([i], names)})" for i in (low, high))
            found.append(f"standard deviations range from {least} to {most}")
        # the bandwidth for standardized features works for pixels and other columns within [0, 1], which have 0.15 to 0.3;
        # below 0.1, rows look so similar that five or more percentage points of accuracy are lost
        elif not complete and not 0.1 <= usual <= 4.0:
            found.append(f"columns have standard deviations of about {usual:.3g}, not 1")
    if found:
        warnings.warn(
            f"{owner}: {'; '.join(found)}; the default kernel suits standardized features: put StandardScaler() before the "
            f"estimator, drop constant columns, or set a kernel",
            ScaleWarning,
            stacklevel=4 if complete else 5,  # the caller of fit or partial_fit
        )


def warn_of_empty(owner: str) -> None:
    """Warn that nothing was learned: no point was kept although the targets are not constant."""
    warnings.warn(
        f"{owner}: no point was kept, and every prediction is the same; lower the budget, put StandardScaler() before the "
        f"estimator, or choose a kernel whose width matches the distances between rows",
        ScaleWarning,
        stacklevel=3,  # the caller of fit
    )


def _listed(columns: Iterable[int], names: Sequence[str] | None) -> str:
    """Columns by number, and by name if they have one."""
    shown = [f"{i} ({str(names[i])!r})" if names is not None else str(i) for i in columns]
    more = len(shown) - 5
    text = ", ".join(shown[:5]) + (f" and {more} more" if more > 0 else "")
    return f"{'column' if len(shown) == 1 else 'columns'} {text}"
