"""Runs a command that must not outlive who has started it: `python flows/tied.py COMMAND ...`, with a pipe as standard input.

Nobody writes to the pipe. It is closed when the process at its other end is gone, even by kill -9. Then the command and all its
children are ended: left alone, they would go on beside the next try of a flow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE = 10.0
"""Seconds for a command to end by itself."""


def main() -> int:
    """The command's exit code, or its end by the same signal; 127 where there is no such program."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # the group that is ended is the command's own
    signal.signal(signal.SIGTERM, lambda *_: None)  # meant for the command, which is in the same group
    try:
        process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    except OSError as e:
        sys.stderr.write(f"error: {sys.argv[1]}: {e.strerror}\n")
        return 127
    left_alone = threading.Event()
    end = threading.Thread(target=_end_with_the_other_end, args=(left_alone,), daemon=True)
    end.start()
    code = process.wait()
    if left_alone.is_set():  # a child of the command may not have listened: it is killed, and this with it
        end.join()
    if code < 0:
        if -code != signal.SIGKILL:  # which has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _end_with_the_other_end(left_alone: threading.Event) -> None:
    os.read(0, 1)  # not by sys.stdin, whose lock would be held while the interpreter ends
    left_alone.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
