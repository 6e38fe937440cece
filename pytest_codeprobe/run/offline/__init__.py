"""--codeprobe-offline: what belongs to a trial reaches loopback and allowed hosts only, and what it tried beside that is told."""
