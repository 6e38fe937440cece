"""The `agent` table of a task, an experiment or a flag: the common fields, and the agents' own tables under their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.model.config import AgentConfig
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.availability import KNOWN_AGENTS
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted, shown
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.yaml import Document

FIELDS = tuple(AgentConfig.model_fields)


@dataclass(frozen=True, slots=True)
class AgentFields:
    """Reads one table; faults are added to `problems`."""

    settings: LoadSettings
    problems: Problems
    document: Document
    where: FieldPath  #: of the table in the document
    name: FieldPath  #: of the table as messages call it

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """The table with the own tables of agents under their names, in the spelling that their models read."""
        by_name = self.settings.agents_by_name
        result: dict[str, Any] = {}
        for key, value in values.items():
            if key in FIELDS:
                result[key] = value
            elif (agent := by_name.get(key)) is None:
                unknown = f"unknown field {key!r}{did_you_mean(key, [*FIELDS, *by_name])} in '{dotted(self.name)}'"
                self._add((key,), f"agent {key!r} is not available yet" if key in KNOWN_AGENTS else unknown, key=True)
            elif agent.table is None:
                self._add((key,), f"agent {agent.name!r} has no settings of its own", key=True)
            elif value is None:
                result[agent.name] = None  # takes a lower layer's away
            elif not isinstance(value, dict):
                self._add((key,), sentences.about((*self.name, key), f"must be a mapping, not {shown(value)}"))
            elif agent.name in result:
                self._add((key,), f"{key!r} and {agent.name!r} are one agent; use one of the two", key=True)
            else:
                result[agent.name] = self._table(agent.table, value, key)
        name = values.get("type")
        if isinstance(name, str) and name not in by_name and name not in KNOWN_AGENTS:
            self._add(("type",), f"unknown agent {name!r}{did_you_mean(name, {*by_name, *KNOWN_AGENTS})}")
        return result

    def _table(self, model: Any, value: dict[str, Any], key: str) -> dict[str, Any]:
        try:
            dumped: dict[str, Any] = model.model_validate(value).model_dump(mode="json", exclude_unset=True)
        except ValidationError as error:
            sentences.report(error, value, model, self.problems, self.document, (*self.where, key), prefix=(*self.name, key))
            return {}
        return dumped

    def _add(self, path: FieldPath, message: str, *, key: bool = False) -> None:
        self.problems.add(self.document.place((*self.where, *path), key=key), (*self.name, *path), message)
