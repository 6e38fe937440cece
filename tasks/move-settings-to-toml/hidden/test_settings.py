import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from relay.routing import route_for
from relay.settings import Route, Settings, SettingsError, load

ROOT = Path.cwd()

ROUTES = '[[routes]]\nname = "a"\ndomains = ["x.org"]\nhost = "h1"\n[[routes]]\nname = "b"\ndomains = ["*"]\n'
TOP = 'listen = "::"\nport = 25\n'


@pytest.fixture
def settings(tmp_path):
    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return load(path)

    return write


def test_the_shipped_settings():
    shipped = load(ROOT / "settings.toml")
    assert shipped == Settings(
        "0.0.0.0",
        2525,
        False,
        ("10.0.0.0/8", "192.168.1.5"),
        (Route("internal", ("example.org", "example.net"), "mail.internal", 25), Route("fallback", ("*",), "smart.example.com", 587)),
    )
    assert route_for(shipped, "a@example.net").host == "mail.internal"
    assert not (ROOT / "settings.ini").exists()


def test_defaults(settings):
    assert settings(TOP) == Settings("::", 25, False, (), ())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('listen = "::"\n', "port"),
        ("port = 25\n", "listen"),
        ('listen = "::"\nport = "25"\n', "port"),
        ('listen = "::"\nport = true\n', "port"),
        ('listen = "::"\nport = 0\n', "port"),
        ('listen = "::"\nport = 65536\n', "port"),
        (TOP + 'verbose = "no"\n', "verbose"),
        (TOP + 'allow = "10.0.0.0/8"\n', "allow"),
        (TOP + "allow = [1]\n", "allow"),
        (TOP + "verbos = true\n", "verbos"),
        (TOP + ROUTES, "routes[1].host"),
        (TOP + ROUTES + 'host = "h2"\nport = 70000\n', "routes[1].port"),
        (TOP + ROUTES + 'host = "h2"\nhosts = "h3"\n', "routes[1].hosts"),
        (TOP + ROUTES + "host = 2\n", "routes[1].host"),
    ],
)
def test_a_mistake_names_its_key(settings, text, key):
    with pytest.raises(SettingsError) as caught:
        settings(text)
    assert key in str(caught.value)


def test_no_toml_is_a_settings_error(settings):
    with pytest.raises(SettingsError):
        settings("[relay\nlisten: 1")


OLD = """\
[relay]
listen = 127.0.0.1
port = 99
verbose = on

[route:the "odd" one]
domains = a.org, b.org
host = c:\\mail
port = 26
"""


def test_the_converter(tmp_path):
    (tmp_path / "old.ini").write_text(OLD, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "convert_settings.py"), "old.ini"], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout) == {
        "listen": "127.0.0.1",
        "port": 99,
        "verbose": True,
        "routes": [{"name": 'the "odd" one', "domains": ["a.org", "b.org"], "host": "c:\\mail", "port": 26}],
    }
