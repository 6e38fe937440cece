"""One run: its folder, plan, events, stop flags, records, envelope and exit code. Nothing here imports pytest."""
