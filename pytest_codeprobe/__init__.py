"""pytest-codeprobe: coding-agent tasks as pytest tests."""

__version__ = "0.1.0"
