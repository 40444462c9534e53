"""A place for a run: builds the needed programs, and enters namespaces of network, mounts and
processes, of which nothing is left when this program ends, however it ends.
"""

import os
import subprocess
import sys

import packages

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", ".."))

# The environment variable that marks the process inside its own namespaces.
INSIDE = "HEDDLE_ALONE"


# A program that a script may need besides `heddle` and `exchange`: the variable that names it, and
# the way to build it.
TENANT = ("TENANT", "examples/tenant", ("-p", "heddle-cli", "--example", "tenant"))


def enter(script, *more):
    """Returns inside the namespaces. HEDDLE, EXCHANGE and the variables of `more` name the
    programs; cargo builds all of them unless each is named."""
    if INSIDE in os.environ:
        return
    name = os.path.basename(script)
    if os.geteuid() != 0:
        sys.exit(f"{name}: this needs root: run it with sudo")
    env = dict(os.environ)
    programs = (("HEDDLE", "heddle", ("-p", "heddle-cli", "--bin", "heddle")),
                ("EXCHANGE", "exchange", ("-p", "heddle-perf", "--bin", "exchange")), *more)
    if not all(env.get(variable) for variable, _, _ in programs):
        packages.need_build()
        # A single cargo builds the common parts only once.
        build = ("cargo", "build", "--quiet", "--release",
                 *(word for _, _, what in programs for word in what))
        if subprocess.run(build, cwd=ROOT).returncode:
            sys.exit(f"{name}: it does not build")
    target = env.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    for variable, path, _ in programs:
        env.setdefault(variable, os.path.join(target, "release", path))
    env[INSIDE] = "1"
    own = ("unshare", "--net", "--mount-proc", "--pid", "--fork", "--kill-child")
    os.execvpe(own[0], (*own, sys.executable, os.path.realpath(script), *sys.argv[1:]), env)
