"""Python's search for cyclic garbage, held while thousands of items come to be and none goes."""

from __future__ import annotations

import gc

_frozen = False  #: by a run of pytest in this process that is over or about to end


class Garbage:
    """Held from hold() to go_on(). What exists then is left out of later searches: pytest keeps its items to the end."""

    def __init__(self) -> None:
        self._held = False

    def hold(self) -> None:
        """Stop searching, if that is not the caller's own choice already."""
        global _frozen  # noqa: PLW0603  # as is what gc freezes
        if _frozen:  # another pytest ran in this process before: what it left can go now
            _frozen = False
            gc.unfreeze()
        if not self._held and gc.isenabled():
            self._held = True
            gc.disable()

    def go_on(self) -> None:
        """Search again."""
        global _frozen  # noqa: PLW0603
        if self._held:
            self._held = False
            if gc.get_freeze_count() == 0:  # else somebody's own, which must not be thawed with ours
                _frozen = True
                gc.freeze()
            gc.enable()
