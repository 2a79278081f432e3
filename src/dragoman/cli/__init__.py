"""The command line: commands parse and print; what they run are the stages of `dragoman.pipeline`.

Settings come from `params.yaml`; options on the command line win over them. Input that a person can correct ends in one
sentence and exit code 2.
"""

from __future__ import annotations

import errno
import logging
import os
import sys

from dragoman import tracking
from dragoman.cli import data, datasets, evaluation, registry, serving, training
from dragoman.cli.command import Interrupted, PrintableFormatter, app, say_error
from dragoman.core import exits
from dragoman.core.errors import Fault, UserError
from dragoman.core.memory import keep_freed

__all__ = ["app", "data", "datasets", "evaluation", "main", "registry", "serving", "training"]

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""Errors of a place to read or write that a person has to mend."""


def main() -> None:
    """Run a command; say in a sentence what was wrong with its input."""
    keep_freed()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("dragoman").setLevel(logging.INFO)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # other people's progress bars are as quiet as ours
    try:
        app()
    except UserError as e:
        say_error(e)
        sys.exit(exits.BAD_INPUT)
    except (NotADirectoryError, FileExistsError) as e:
        say_error(f"{e.filename}: a file lies where a folder is needed; name another place")
        sys.exit(exits.BAD_INPUT)
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            say_error(f"{str(e.filename)[:60]}...: the name of a file or folder is too long; give a shorter one")
            sys.exit(exits.BAD_INPUT)
        if e.errno not in UNWRITABLE:
            raise
        say_error(f"{e.filename or 'a file'}: {e.strerror}; what is finished is kept")
        sys.exit(exits.BAD_INPUT)
    except Fault as e:  # nothing is wrong with the input, and a later try may pass
        say_error(e)
        sys.exit(exits.FAULT)
    except Interrupted:
        print("interrupted; what is finished is kept, run the same command to go on", file=sys.stderr)
        sys.exit(exits.INTERRUPTED)
    except Exception as e:
        if (said := tracking.unreachable(e)) is None:
            raise
        say_error(said)
        sys.exit(exits.FAULT)
