"""Who plays the user of a dialog, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.config import DockerConfig, SandboxConfig, Simulation
from pytest_codeprobe.model.trial import Trial

Who = Literal["agent", "user"]
_NOTHING = "(The agent said nothing.)"


def users_trial(trial: Trial, simulation: Simulation, agent: Agent) -> Trial:
    """What the user's session is made from: nothing of the task but its limits. It sees no template, reference, solution or test."""
    assert simulation.agent is not None
    config = simulation.agent
    if is_told_its_role(simulation, agent):
        config = config.model_copy(update={"system_prompt": role_of(simulation)})
    return trial.model_copy(
        update={
            "agent": config,
            "sandbox": SandboxConfig(
                driver=trial.sandbox.driver,
                network=trial.sandbox.network,
                git="none",
                limits=trial.sandbox.limits,
                docker=_image_of(trial.sandbox.docker),
            ),
            "limits": trial.limits.model_copy(update={"max_turns": None, "expected_turns": None}),
            "prompt": None,
            "criteria": (),
            "reference": None,
            "solution": None,
            "pre_run": (),
            "post_run": (),
            "simulation": None,
            "manifest": (),
        }
    )


def _image_of(config: DockerConfig | None) -> DockerConfig | None:
    """The same image, with nothing of this machine in it."""
    return config.model_copy(update={"mounts": None, "working_dir": None}) if config is not None else None


def is_told_its_role(simulation: Simulation, agent: Agent) -> bool:
    """Whether users_trial() puts the role into its system prompt."""
    config = simulation.agent
    return "system_prompt" in agent.supports and config is not None and config.system_prompt is None and config.system_prompt_file is None


def role_of(simulation: Simulation) -> str:
    """What the user is to be, for a model."""
    given = simulation.constraints or ()
    constraints = [given] if isinstance(given, str) else given
    parts = [
        (
            "You play the user of a coding agent. You tell the agent what you want and answer what it asks; you do none of its work, "
            "and you can't see its files."
        ),
        f"Who you are: {simulation.persona}" if simulation.persona else "",
        f"What you want: {simulation.goal}",
        "\n".join(["What you keep to:", *(f"- {constraint}" for constraint in constraints)]) if constraints else "",
        (
            "Answer with the next message that you send to the agent and nothing else, as a person would write it. "
            f"Once you have what you want, or it is clear that you won't get it, answer with {simulation.stop_token} alone."
        ),
    ]
    return "\n\n".join(filter(None, parts))


def first_words(role: str, said: Sequence[tuple[Who, str]]) -> str:
    """The dialog as far as it has come, for a user who remembers nothing of it."""
    parts = [role] if role else []
    if not said:
        return "\n\n".join([*parts, "Write your first message to the agent."])
    parts.append("This is what has been said so far.")
    parts += [f"{'You' if who == 'user' else 'The agent'}:\n{text.strip() or _NOTHING}" for who, text in said]
    return "\n\n".join([*parts, "Write your next message to the agent."])


def next_words(message: str) -> str:
    """What the agent has said, for a user who remembers the rest."""
    return message if message.strip() else _NOTHING
