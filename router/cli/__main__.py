"""`python -m router.cli`: the `prefixlb` command where it is not installed."""

import sys

from router.cli import main

sys.exit(main())
