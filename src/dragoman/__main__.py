"""`dragoman`, and `python -m dragoman`: the command line, whose import takes seconds in which Ctrl-C ends in a sentence, too."""

import sys

from dragoman.core import exits


def main() -> None:
    try:
        from dragoman.cli import main as run_command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was begun\n")
        sys.exit(exits.INTERRUPTED)
    run_command()


if __name__ == "__main__":
    main()
