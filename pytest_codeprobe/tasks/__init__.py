"""Task files: which files they are, loading with positions, layers, and the trials they become."""

from __future__ import annotations
