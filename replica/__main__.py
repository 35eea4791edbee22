"""`python -m replica`: settings, then the process that they describe."""

import signal
import sys

from prometheus_client import disable_created_metrics

from proto.logs import configure_logs
from proto.secret import read_hash_secret
from replica.allocator import share_one_heap, trim_now_and_then
from replica.py_tree.chain import derive_hash_key
from replica.settings import read_settings


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 after a signal, 1 if a port is taken, 2 for a bad setting, file or model."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while a model loads
    settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    configure_logs(settings.log_level, settings.log_format)
    share_one_heap()
    trim_now_and_then()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the page
    try:
        hash_key = derive_hash_key(read_hash_secret(settings.hash_secret_file))
    except ValueError as error:
        print(f"prefixlb replica: --hash-secret-file: {error}", file=sys.stderr)
        return 2
    from replica.lifecycle import run  # takes seconds, which a bad setting shall not

    return run(settings, hash_key)


if __name__ == "__main__":
    sys.exit(main())
