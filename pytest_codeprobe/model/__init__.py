"""Plain values that every part shares: configuration, trials, results, transcripts, and the protocols between parts.

pydantic and the standard library only; what is here survives a JSON round trip unless it says otherwise.
"""
