"""`python -m intarsia.tools.opt`: the same as `passes-opt`."""

import sys

from .main import main

sys.exit(main())
