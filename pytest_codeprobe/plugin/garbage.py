"""Python's search for cyclic garbage, held while thousands of items come to be and none goes."""

from __future__ import annotations

import gc

#: young objects are looked at seldom, old ones next to never: each look at all items finds that all are still there
_SELDOM = (100_000, 50, 1_000)
_frozen = False  #: by a run of pytest in this process that is over or about to end


class Garbage:
    """Held from hold() to go_on(). What exists then is left out of later searches: pytest keeps its items to the end."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def hold(self) -> None:
        """Search less often, if nobody has forbidden it altogether."""
        global _frozen  # noqa: PLW0603  # as is what gc freezes
        if self._before is not None or not gc.isenabled():
            return
        if _frozen:  # another pytest ran in this process before: what it left can go now
            _frozen = False
            gc.unfreeze()
        self._before = gc.get_threshold()
        gc.set_threshold(*_SELDOM)

    def go_on(self) -> None:
        """Search as before."""
        global _frozen  # noqa: PLW0603
        if self._before is None:
            return
        gc.set_threshold(*self._before)
        self._before = None
        if gc.get_freeze_count() == 0:  # else it is somebody's own, which must not be thawed with ours
            _frozen = True
            gc.freeze()
