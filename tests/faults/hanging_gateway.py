"""A gateway whose event loop hangs for good when it gets SIGUSR1."""

from __future__ import annotations

import signal
import sys
import time

from gateway.__main__ import main

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda _number, _frame: time.sleep(3600))
    sys.exit(main())
