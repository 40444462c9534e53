"""A place of its own: the programs that are needed, built, and namespaces of network, mounts and processes,
of which nothing is left when this program ends, however it ends."""

import os
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", ".."))

# The mark of the process that is alone with its namespaces.
INSIDE = "HEDDLE_ALONE"


def enter(script):
    """Returns in the namespaces. HEDDLE and EXCHANGE name the programs; what is not named is built."""
    if INSIDE in os.environ:
        return
    name = os.path.basename(script)
    if os.geteuid() != 0:
        sys.exit(f"{name}: this needs root: run it with sudo")
    env = dict(os.environ)
    if not (env.get("HEDDLE") and env.get("EXCHANGE")):
        for package, program in (("heddle", "heddle"), ("heddle-perf", "exchange")):
            build = ("cargo", "build", "--quiet", "--release", "-p", package, "--bin", program)
            if subprocess.run(build, cwd=ROOT).returncode:
                sys.exit(f"{name}: it does not build")
    target = env.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    env.setdefault("HEDDLE", os.path.join(target, "release", "heddle"))
    env.setdefault("EXCHANGE", os.path.join(target, "release", "exchange"))
    env[INSIDE] = "1"
    own = ("unshare", "--net", "--mount-proc", "--pid", "--fork", "--kill-child")
    os.execvpe(own[0], (*own, sys.executable, os.path.realpath(script), *sys.argv[1:]), env)
