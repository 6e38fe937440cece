"""The fixtures that task items request, worked out once for all items that must request the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

#: by these a plugin can get hold of the node of one file, and put a fixture or a mark on it alone
_HOOKS = ("pytest_collectstart", "pytest_collect_file", "pytest_make_collect_report", "pytest_itemcollected", "pytest_collectreport")
_HARMLESS = frozenset(("_pytest", "xdist", "pytest_codeprobe"))


class Closures:
    """Items of files in one folder that name the same fixtures see the same definitions, where no hook of others can say otherwise.

    Not public in pytest: the attribute `_fixtureinfo` of an item, which its constructor takes as `fixtureinfo`.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._infos: dict[object, Any] = {}
        self._shared: dict[object, bool] = {}

    def known(self, file: pytest.Collector, fixtures: Sequence[str]) -> dict[str, Any]:
        """Arguments for the constructor of an item of a file: what is known, in containers of its own. Empty: pytest works it out."""
        key = (file.parent, *fixtures)
        info = self._infos.get(key)
        if info is None:
            return {}
        if key not in self._shared:
            self._shared[key] = self._only_ours()
        if not self._shared[key]:
            return {}
        # plugins add names to these for one item
        own = dataclasses.replace(info, names_closure=[*info.names_closure], name2fixturedefs={**info.name2fixturedefs})
        return {"fixtureinfo": own}

    def note(self, file: pytest.Collector, fixtures: Sequence[str], item: pytest.Item) -> None:
        """Keep what pytest has worked out for an item."""
        info = getattr(item, "_fixtureinfo", None)
        if dataclasses.is_dataclass(info):
            self._infos.setdefault((file.parent, *fixtures), info)

    def _only_ours(self) -> bool:
        """Looked at when a second file of a folder asks: the conftest.py of the folder is loaded by then."""
        impls = [impl for name in _HOOKS for impl in getattr(self._config.pluginmanager.hook, name).get_hookimpls()]
        return all(impl.function.__module__.partition(".")[0] in _HARMLESS for impl in impls)
