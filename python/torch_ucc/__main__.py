import sys

from torch_ucc.cli import main

sys.exit(main())
