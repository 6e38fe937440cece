"""The marks of task items."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest


class Marks:
    """Each mark is made once: thousands of items have the same tags."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._of_tags: dict[str, list[pytest.MarkDecorator]] = {}

    @functools.cached_property
    def ours(self) -> pytest.MarkDecorator:
        """`codeprobe`, without arguments. pytest checks at each look-up that the name is registered."""
        return pytest.mark.codeprobe

    def of_tag(self, tag: str) -> Sequence[pytest.MarkDecorator]:
        """Those of a tag, registered; one of its own name only if neither pytest nor a plugin has a mark of that name."""
        if tag not in self._of_tags:
            marks = self._of_tags[tag] = [self.ours(tag=tag)]
            if tag.replace("-", "_").isidentifier() and not tag.startswith("_") and tag not in self._foreign:
                self._config.addinivalue_line("markers", f"{tag}: a tag of tasks")
                marks.append(getattr(pytest.mark, tag))
        return self._of_tags[tag]

    @functools.cached_property
    def _foreign(self) -> frozenset[str]:
        lines: list[str] = self._config.getini("markers")
        return frozenset(line.partition(":")[0].partition("(")[0].strip() for line in lines)
