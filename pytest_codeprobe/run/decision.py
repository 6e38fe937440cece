"""What becomes of one trial when its run is gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one trial under resume."""

    kind: Literal["keep", "grade", "run", "skip"]
    why: str = ""  #: it is not kept, as the end of a sentence; empty where there is nothing to be kept
    gated: bool = False  #: it is skipped, but is one of the repeats that its gate was judged by
