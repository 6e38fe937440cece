"""Adapters: one file or package for each agent, a base for what they share."""

from __future__ import annotations

from pytest_codeprobe.agents.builtin import NoAgent, Nop, Oracle
from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.agents.command import CommandAgent
from pytest_codeprobe.agents.scripted import ScriptedAgent
from pytest_codeprobe.model.agent import Agent

#: the agents that come with the plugin
BUILTIN: tuple[Agent, ...] = (Claude(), CommandAgent(), NoAgent(), Nop(), Oracle(), ScriptedAgent())
