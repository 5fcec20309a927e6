"""Error sweep: each call of command, supervisor and shim fails once with each error that it may return.

EIO ENOSPC EMFILE EACCES EROFS ENOLCK EAGAIN ENOMEM: the command ends with one line that states the reason, or succeeds;
nothing is half-done and nothing panics. EINTR: the failure has no visible effect. Points and verdicts are those of the
kill sweep.
"""

import sys

from . import sweep


def main(argv=None) -> int:
    return sweep.main(argv, errors=True, doc=__doc__, module="errors")


if __name__ == "__main__":
    sys.exit(main())
