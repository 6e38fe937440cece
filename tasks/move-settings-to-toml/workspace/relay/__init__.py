"""Decides which mail server gets a message."""
