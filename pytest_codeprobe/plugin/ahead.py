"""Which trials may run before pytest's own set-up of their item: those for which pytest can neither skip nor prepare anything first."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.plugin.collect import TaskItem

OURS = ("codeprobe_sandbox", "codeprobe_session", "codeprobe_score")
FIXTURE_MODULE = "pytest_codeprobe.plugin.fixtures"
#: a conftest.py that implements one of these can skip a task, or do something for it that its agent needs
HOOKS = ("pytest_runtest_setup", "pytest_runtest_protocol", "pytest_pyfunc_call", "pytest_fixture_setup")
#: marks of items that no set-up skips by: pytest's own, ours, and those of plugins that we know
_HARMLESS_MARKS = frozenset(
    {"codeprobe", "skip", "xfail", "usefixtures", "filterwarnings", "parametrize", "flaky", "timeout", "xdist_group"}
)
_KNOWN_PLUGINS = frozenset({"_pytest", "pytest", "pytest_codeprobe", "pytest_timeout", "pytest_rerunfailures", "xdist"})
#: attributes of pytest's namespace -> what was typed: these show or stop what happens in an item's own set-up
FLAGS = {
    "setupshow": "--setup-show",
    "usepdb": "--pdb",
    "trace": "--trace",
    "stepwise": "--stepwise",
}


#: a reason that the ini key takes away; not for a fixture of ours that is overridden, or one that is not defined
_FIXTURE = re.compile(r"fixture (\w+) of .+")


class Ahead:
    """Answers for the items of one session; what holds of all of them is looked up once."""

    def __init__(self, config: pytest.Config, allowed: tuple[str, ...]) -> None:
        self._config, self._allowed = config, frozenset(allowed)
        self._flag = next((typed for name, typed in FLAGS.items() if getattr(config.option, name, False)), None)
        self._installed = _installed(config.pluginmanager)
        local = [(name, p) for name, p in config.pluginmanager.list_name_plugin() if p is not None and not self._is_installed(_module(p))]
        self._hooks = list(self._local_hooks())
        self._acts_on_marks = next(self._plugins_with_set_up(), None)
        self._imported = {id(f): name for name, plugin in local for f in _functions(plugin)}

    def forced(self, item: TaskItem) -> str | None:
        """What keeps this trial from running ahead, in words that a person can act on; None if nothing does."""
        if self._flag is not None:
            return self._flag
        if any(item.iter_markers("skipif")):
            return "a skipif mark"
        if any(m.args or "condition" in m.kwargs or m.kwargs.get("run") is False for m in item.iter_markers("xfail")):
            return "an xfail mark with a condition or run=False"
        if self._acts_on_marks and (
            mark := next((m.name for m in item.iter_markers() if m.name not in {*_HARMLESS_MARKS, *item.head.tags}), "")
        ):
            return f"mark {mark}, by which plugin {self._acts_on_marks} may skip"
        for folder, text in self._hooks:
            if folder is None or folder in item.path.parents:
                return text
        return next(self._fixtures(item), None)

    def _fixtures(self, item: TaskItem) -> Iterator[str]:
        known = fixture_definitions(item)
        yield from (f"fixture {name}, which is not defined" for name in item.fixturenames if name not in known and name != "request")
        for name, definitions in known.items():
            for definition in definitions:
                function = definition.func
                module = getattr(function, "__module__", None) or ""
                if name in OURS:
                    if module != FIXTURE_MODULE:
                        yield f"fixture {name}, overridden in {self._shown(module, function)}"
                elif name not in self._allowed and (not self._is_installed(module) or id(_bare(function)) in self._imported):
                    yield f"fixture {name} of {self._shown(module, function)}"

    def _shown(self, module: str, function: Any) -> str:
        """Where a person finds it. Several conftest.py have the same module name."""
        where = self._imported.get(id(_bare(function))) or getattr(getattr(function, "__code__", None), "co_filename", None) or module
        return _relative(where, self._config.rootpath)

    def _local_hooks(self) -> Iterator[tuple[Path | None, str]]:
        """(folder, what to say) for each hook of HOOKS that is no installed plugin's; folder None: it sees every item."""
        for hook in HOOKS:
            for impl in getattr(self._config.hook, hook).get_hookimpls():  # pluggy's public way, sees specname= too
                if self._is_installed(_module(impl.plugin)):
                    continue
                path = Path(impl.plugin_name)
                folder = path.parent if path.name == "conftest.py" else None
                yield folder, f"{hook} in {_relative(impl.plugin_name, self._config.rootpath)}"

    def _plugins_with_set_up(self) -> Iterator[str]:
        """Installed plugins that see an item before it is set up, such as pytest-dependency: they skip by their own marks."""
        for impl in self._config.hook.pytest_runtest_setup.get_hookimpls():
            module = _module(impl.plugin)
            if self._is_installed(module) and module.partition(".")[0] not in _KNOWN_PLUGINS:
                yield module

    def _is_installed(self, module: str) -> bool:
        return module.partition(".")[0] in self._installed or _in_site_packages(module)


def remedies(allowed: Sequence[str], reasons: Iterable[str], items: Iterable[pytest.Item]) -> list[str]:
    """What ini codeprobe_ahead_fixtures can do where fixtures hold trials back, and which of its names are nobody's."""
    holding = dict.fromkeys(found[1] for reason in reasons if (found := _FIXTURE.fullmatch(reason)) is not None)
    if not holding:
        return []
    used = {name for item in items for name in getattr(item, "fixturenames", ())}
    slips = [name for name in allowed if name not in used]
    value = " ".join([*(name for name in allowed if name in used), *holding])
    return [
        f"where an agent may start before {', '.join(holding)} is set up, put in the ini file: codeprobe_ahead_fixtures = {value}",
        *(f"ini codeprobe_ahead_fixtures: no test here has a fixture {name!r}{did_you_mean(name, holding)}" for name in slips),
    ]


def fixture_definitions(item: pytest.Item) -> dict[str, tuple[pytest.FixtureDef[Any], ...]]:
    """Name -> definitions, of every fixture in the item's closure. The one private name of pytest here."""
    info = getattr(item, "_fixtureinfo", None)
    return {name: tuple(found) for name, found in getattr(info, "name2fixturedefs", {}).items()}


def _installed(manager: pytest.PytestPluginManager) -> frozenset[str]:
    """Top-level packages of pytest, of us, and of all that came by entry point."""
    found = {"_pytest", "pytest", "pytest_codeprobe"}
    found.update(_module(plugin).partition(".")[0] for plugin, _ in manager.list_plugin_distinfo())
    return frozenset(found)


def _module(plugin: object) -> str:
    name = getattr(plugin, "__name__", None)
    return name if isinstance(name, str) and isinstance(plugin, type(sys)) else type(plugin).__module__


def _in_site_packages(module: str) -> bool:
    """A plugin loaded by name (-p, PYTEST_PLUGINS) is an installed one too if it lies where packages are installed."""
    place = getattr(sys.modules.get(module), "__file__", None)
    if place is None:
        return False
    return any(Path(place).is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))


def _functions(plugin: object) -> Iterator[object]:
    """Fixture functions that stand in a conftest.py or a plugin of the project itself, also those that it only imported."""
    for value in vars(plugin).values() if hasattr(plugin, "__dict__") else ():
        if type(value).__module__.startswith("_pytest.") and hasattr(value, "__wrapped__"):
            yield _bare(value.__wrapped__)


def _bare(function: Any) -> object:
    """Without what binds it to an instance."""
    return getattr(function, "__func__", function)


def _relative(name: str, root: Path) -> str:
    path = Path(name)
    return str(path.relative_to(root)) if path.is_absolute() and path.is_relative_to(root) else name
