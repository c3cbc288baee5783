"""``python -m graphparity.command``: the same as ``graphparity``."""

import sys

from graphparity.command.app import main

if __name__ == "__main__":
    sys.exit(main())
