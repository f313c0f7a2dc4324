"""`python -m sailor_cloud.provision.local.vm ACTION`: starts and stops nodes of older runs."""

import sys

from sailor_cloud.provision.providers.local.vm import main

if __name__ == "__main__":
    sys.exit(main())
