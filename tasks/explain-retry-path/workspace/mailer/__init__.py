"""Hands messages over to a mail server."""

from mailer.send import Undeliverable, send

__all__ = ["Undeliverable", "send"]
