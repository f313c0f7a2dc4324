"""Runs the command line: `python -m sailor_cloud`."""

from sailor_cloud.cli import main

if __name__ == "__main__":
    main()
