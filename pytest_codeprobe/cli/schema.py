"""`codeprobe schema`: the JSON Schemas that the package ships."""

from __future__ import annotations

import importlib.resources
import json

import click

from pytest_codeprobe.cli.answers import envelope_line, json_by_environment, say
from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.run.remedy import nearest

_FOLDER = importlib.resources.files("pytest_codeprobe.run").joinpath("schemas")


def names() -> list[str]:
    """Of the schemas, sorted."""
    return sorted(entry.name.removesuffix(".json") for entry in _FOLDER.iterdir() if entry.name.endswith(".json"))


def text_of(name: str) -> str:
    """A schema as it is shipped. USAGE_ERROR for an unknown name."""
    known = names()
    if name not in known:
        meant = nearest(name, known)
        raise CodeprobeError(
            "USAGE_ERROR",
            f"there is no schema {name!r}{did_you_mean(name, known)}",
            remediation=f"Choose one of: {', '.join(known)}.",
            command=("codeprobe", "schema", *([meant] if meant else [])),
            detail={"schema": name, "known": known},
        )
    return _FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8")


@click.command(short_help="Print a JSON Schema.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="The list as one line of JSON, in the envelope's form.")
def schema(name: str | None, as_json: bool) -> None:
    """Print the JSON Schema called NAME; without NAME list them."""
    if name is not None:
        say(text_of(name).rstrip("\n"))
        return
    heads = {each: json.loads(text_of(each)) for each in names()}
    if as_json or json_by_environment():
        listed = [{"name": each, "title": head["title"], "description": head["description"]} for each, head in heads.items()]
        say(envelope_line("schema", {"schemas": listed})[0])
        return
    width = max(map(len, heads))
    for each, head in heads.items():
        say(f"{each:<{width}}  {head['description']}")
