"""What an experiment does to a task's prompt: mutations, and preambles behind it.

Mutations of several layers are merged as all settings are: of the mapping form each field is replaced by a higher layer's, a list by a
list or a mapping. Files written for coder-eval give them as a list, which keeps its order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import regex
from pydantic import Discriminator, Field, RootModel, Tag, model_validator

from pytest_codeprobe.model.base import Flag, Model, Text

REGEX_SECONDS = 5.0  #: for one replacement in one prompt
_PROMPT = "{prompt}"
Fill = Callable[[str], str]  #: puts the values of a row into a text of the experiment


class PromptProblem(ValueError):
    """Why a prompt can't be made, as a sentence."""


class Joined(Model):
    """Text put before or after the prompt."""

    type: Literal["prefix", "suffix"]
    content: Text
    separator: Text = "\n\n"

    def apply(self, prompt: str, fill: Fill) -> str:
        """The prompt with it."""
        content = fill(self.content)
        first, second = (content, prompt) if self.type == "prefix" else (prompt, content)
        return f"{first}{self.separator}{second}"


class Replaced(Model):
    """Text put in place of other text, wherever that stands."""

    type: Literal["replace"]
    pattern: Text = Field(min_length=1)
    replacement: Text
    regex: Flag = False  #: `pattern` is a regular expression, `replacement` may say \\1

    @model_validator(mode="after")
    def _compiles(self) -> Replaced:
        if self.regex:
            try:
                regex.compile(self.pattern)
            except regex.error as error:
                raise ValueError(f"'pattern' is no regular expression: {error}") from error
        return self

    def apply(self, prompt: str, fill: Fill) -> str:
        """The prompt with it. PromptProblem where a regular expression takes too long, or `replacement` names a group that is not there."""
        if not self.regex:
            return prompt.replace(fill(self.pattern), fill(self.replacement))
        if fill(self.replacement) != self.replacement:
            raise PromptProblem(f"replacement {self.replacement!r}: beside a regular expression it can't name fields of the row")
        try:
            return str(regex.sub(self.pattern, self.replacement, prompt, timeout=REGEX_SECONDS))
        except TimeoutError as error:
            raise PromptProblem(f"pattern {self.pattern!r} takes more than {REGEX_SECONDS:.0f} s") from error
        except (regex.error, IndexError) as error:
            raise PromptProblem(f"replacement {self.replacement!r}: {error}") from error


class Filled(Model):
    """Values put in place of `{name}`; names without a value stay."""

    type: Literal["template"]
    variables: dict[str, Text]

    def apply(self, prompt: str, fill: Fill) -> str:
        """The prompt with them, each looked for once: what a value says is left alone."""
        if not self.variables:
            return prompt
        names = re.compile("|".join(re.escape(f"{{{name}}}") for name in sorted(self.variables, key=len, reverse=True)))
        return names.sub(lambda match: fill(self.variables[match[0][1:-1]]), prompt)


class Around(Model):
    """A text around the prompt: `{prompt}` in it is where that goes. Not in the list form."""

    type: Literal["around"] = "around"
    template: Text

    def apply(self, prompt: str, fill: Fill) -> str:
        """The template with the prompt in it."""
        return prompt.join(map(fill, self.template.split(_PROMPT)))


Mutation = Joined | Replaced | Filled | Around


class Replacement(Model):
    """One entry of `replace`."""

    old: Text = Field(min_length=1)
    new: Text


class MutationTable(Model):
    """The mapping form: replaced first, then the template, then what stands before and after."""

    replace: tuple[Replacement, ...] | None = None
    template: Text | None = None
    prefix: Text | None = None
    suffix: Text | None = None

    @model_validator(mode="after")
    def _has_prompt(self) -> MutationTable:
        if self.template is not None and _PROMPT not in self.template:
            raise ValueError(f"'template' must say {_PROMPT} where the prompt goes")
        return self

    def steps(self) -> Iterator[Mutation]:
        """In the order in which they are done."""
        for entry in self.replace or ():
            yield Replaced(type="replace", pattern=entry.old, replacement=entry.new)
        if self.template is not None:
            yield Around(template=self.template)
        if self.prefix is not None:
            yield Joined(type="prefix", content=self.prefix)
        if self.suffix is not None:
            yield Joined(type="suffix", content=self.suffix)


_Step = Annotated[Joined | Replaced | Filled, Field(discriminator="type")]


def _form(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "mapping"


_Forms = Annotated[Annotated[tuple[_Step, ...], Tag("list")] | Annotated[MutationTable, Tag("mapping")], Discriminator(_form)]


class Mutations(RootModel[_Forms]):
    """`prompt_mutations`, in either form."""

    def steps(self) -> tuple[Mutation, ...]:
        """What is done to a prompt, in order."""
        return tuple(self.root.steps()) if isinstance(self.root, MutationTable) else self.root


#: what one layer says of mutations: nothing, or one entry; None takes those of lower layers away
Said = tuple[Mutations | None, ...]


def steps_of(layers: Iterable[Mutations | None]) -> tuple[Mutation, ...]:
    """What is done to a prompt after what the layers say, given low to high."""
    found: Mutations | None = None
    for upper in layers:
        lower = found.root if found is not None else None
        found = upper
        if upper is not None and isinstance(upper.root, MutationTable) and isinstance(lower, MutationTable):
            given = {name: getattr(upper.root, name) for name in upper.root.model_fields_set}
            found = Mutations(lower.model_copy(update=given))
    return () if found is None else found.steps()


def mutated(prompt: str, steps: Iterable[Mutation], fill: Fill) -> str:
    """The prompt after all steps. PromptProblem where one can't be done, and what `fill` raises."""
    for step in steps:
        prompt = step.apply(prompt, fill)
    return prompt


# ---- preambles

PREAMBLES = Path(".codeprobe", "preambles")  #: below rootdir, and below the user's home
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def find_preamble(name: str, folders: Sequence[Path]) -> Path:
    """The file that a name (with or without `.md`) means, in the first folder that has it. PromptProblem otherwise."""
    names = (name,) if name.endswith(".md") else (f"{name}.md", name)
    for folder in folders:
        for spelled in names:
            if (folder / spelled).is_file():
                return folder / spelled
    raise PromptProblem(f"preamble {name!r} was not found in {', '.join(map(str, folders))}")


def preamble_text(file: Path, variables: Mapping[str, str]) -> str:
    """What a preamble says. PromptProblem where it can't be read, or has a variable that nobody fills."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptProblem(f"preamble {file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PromptProblem(f"preamble {file} is not UTF-8: byte {error.start}") from error

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise PromptProblem(f"preamble {file} has {match[0]}; it can have {', '.join(f'{{{{{name}}}}}' for name in variables)}")
        return variables[match[1]]

    return _VARIABLE.sub(value, text)


def with_preambles(prompt: str, texts: Iterable[str]) -> str:
    """The prompt, and each text behind it after an empty line."""
    return "\n\n".join((prompt, *(text.strip("\n") for text in texts)))
