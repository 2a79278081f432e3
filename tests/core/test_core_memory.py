import subprocess
import sys

import pytest

LOOP = """
import resource, threading
from dragoman.core.memory import give_back, keep_freed
{before}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    b"x" * 100_000_000
found = []
def passes():
    fill()
    first = faults()
    for _ in range(10):
        fill()
    found.append(faults() - first)
    give_back()
    first = faults()
    fill()
    found.append(faults() - first)
thread = threading.Thread(target=passes)  # as an engine's
thread.start()
thread.join()
print(*found)
"""
PAGES = 100_000_000 // 4096


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
@pytest.mark.parametrize("kept", [True, False])
def test_what_a_thread_frees_is_kept_for_its_next_pass_until_it_is_given_back(kept):
    code = LOOP.format(before="keep_freed()" if kept else "")
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    repeated, after = map(int, out.split())
    assert (repeated < PAGES / 10) is kept  # else each of the ten passes has them all cleared again
    assert after > PAGES / 2
