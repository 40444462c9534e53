"""The functions of lib.sh for packages, for the scripts that are Python."""

import pathlib
import subprocess
import sys

LIB = pathlib.Path(__file__).resolve().parent / "lib.sh"


def _ask(function, packages):
    # The messages begin with the name of the calling script.
    if subprocess.run(["bash", "-c", f'. {LIB}; {function} "$@"', sys.argv[0], *packages],
                      check=False).returncode:
        sys.exit(1)


def need(*packages):
    """Ends this program if Debian packages are missing and cannot be installed."""
    _ask("need_packages", packages)


def need_build(*packages):
    """Ends this program if the build's dependencies, or these packages, cannot be installed."""
    _ask("need_build", packages)
