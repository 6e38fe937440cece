"""Hidden tests: the criterion `pytest`.

Two processes: this one lays the tests, keeps the clock and judges; a child (`children/hidden_runner.py`) runs pytest together
with the agent's code and reports over an authenticated channel. Neither its exit status nor its output is believed.
"""

from __future__ import annotations

from pytest_codeprobe.criteria.hidden.criterion import HiddenTests

__all__ = ["HiddenTests"]
