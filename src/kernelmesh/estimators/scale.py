"""Features that the default kernel, which weighs all of them alike, cannot do justice to."""

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import ScaleWarning

__all__ = ["warn_of_scales"]

_ROWS = 32
"""From fewer rows little can be said."""
_RATIO = 100.0
"""By how much standard deviations may differ."""
_NARROWEST, _WIDEST = 0.02, 4.0
"""Between these the default bandwidth is of use; beyond, two rows have next to all, or next to nothing, in common."""
_LISTED = 5


def warn_of_scales(owner: str, X: Floats, names: Sequence[str] | None, *, complete: bool) -> None:
    """Warn of columns that are constant or of very different scales, and of features that are far too wide or narrow.

    Columns of zeros are no concern: that is what scaling makes of constant ones. Nor are constant columns where `X` is not
    `complete`, but the beginning of a stream, in which they may yet vary.
    """
    if len(X) < _ROWS:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        spreads, varies = X.std(axis=0), np.ptp(X, axis=0) > 0.0
        usual = float(np.sqrt(np.mean(spreads**2)))
    found = []
    if complete and (constant := np.flatnonzero(~varies & (X[0] != 0.0))).size:
        found.append(f"{_listed(constant, names)} {'is' if len(constant) == 1 else 'are'} constant")
    if varies.any():
        low, high = (int(pick(np.where(varies, spreads, fill))) for pick, fill in ((np.argmin, np.inf), (np.argmax, -np.inf)))
        if spreads[high] > _RATIO * spreads[low]:
            least, most = (f"{spreads[i]:.3g} ({_listed([i], names)})" for i in (low, high))
            found.append(f"standard deviations range from {least} to {most}")
        elif not _NARROWEST <= usual <= _WIDEST:
            found.append(f"columns have standard deviations of about {usual:.3g}, not 1")
    if found:
        warnings.warn(
            f"{owner}: {'; '.join(found)}; the default kernel suits standardized features: put StandardScaler() before the "
            f"estimator, drop what is constant, or set a kernel",
            ScaleWarning,
            stacklevel=4 if complete else 5,  # whoever has called fit or partial_fit
        )


def _listed(columns: Iterable[int], names: Sequence[str] | None) -> str:
    """Columns by number, and by name where they have one."""
    shown = [f"{i} ({str(names[i])!r})" if names is not None else str(i) for i in columns]
    more = len(shown) - _LISTED
    text = ", ".join(shown[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"{'column' if len(shown) == 1 else 'columns'} {text}"
