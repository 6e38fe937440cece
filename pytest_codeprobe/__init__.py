"""pytest-codeprobe: coding-agent tasks as pytest tests.

PYTEST_DONT_REWRITE: `codeprobe run` imports this module before pytest does, which pytest would warn of.
"""

from __future__ import annotations

__version__ = "0.1.0"
