"""Becomes a command that ends, as on SIGTERM, when its parent is gone, however it went. Linux only.

python -I -S tied.py PARENT_PID COMMAND...: run as a file, so that nothing is imported but this.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>; exec keeps it


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:  # otherwise it went before
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
