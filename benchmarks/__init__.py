"""What is measured beside the scores of `dragoman evaluate`. Each module says what it measures, and by which command.

Seconds of alternatives are compared within one run, as ratios with intervals (`ratios`). `constants` and `sizing` are parts of `capacity`.
"""
