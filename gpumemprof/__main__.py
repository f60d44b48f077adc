"""``python -m gpumemprof``."""

import sys

from gpumemprof.cli.main import main

sys.exit(main())
