"""The exit codes of commands. Whoever runs one decides by them what comes next."""

FAULT = 1
"""Something has failed, and not for its input: a later try may pass."""
BAD_INPUT = 2
"""Input that a person has to correct."""
REFUSED = 3
"""Of `promote`: the challenger is not good enough."""
DRIFTED = 4
"""Of `drift`: traffic is not what it was."""
INTERRUPTED = 130
"""Ctrl-C, in the number that shells have for it."""
