"""Prints the TOML for an old settings.ini: python convert_settings.py OLD.ini"""

import configparser
import json
import sys


def text(value: str) -> str:
    return json.dumps(value)  # a JSON string in ASCII is a TOML basic string, escapes included


def array(value: str) -> str:
    return "[" + ", ".join(text(part.strip()) for part in value.split(",") if part.strip()) + "]"


def switch(value: str) -> str:
    return str(configparser.ConfigParser.BOOLEAN_STATES[value.lower()]).lower()


KINDS = {"listen": text, "port": str, "verbose": switch, "allow": array, "domains": array, "host": text}


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: convert_settings.py OLD.ini\n")
        return 2
    parser = configparser.ConfigParser(interpolation=None)
    with open(sys.argv[1], encoding="utf-8") as file:
        parser.read_file(file)
    lines = [f"{key} = {KINDS[key](value)}" for key, value in parser["relay"].items()]
    for section in parser.sections():
        if section.startswith("route:"):
            lines += ["", "[[routes]]", f"name = {text(section.removeprefix('route:'))}"]
            lines += [f"{key} = {KINDS[key](value)}" for key, value in parser[section].items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
