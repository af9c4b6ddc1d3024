"""``python -m deqbook``."""

import sys

from deqbook.cli import main

sys.exit(main())
