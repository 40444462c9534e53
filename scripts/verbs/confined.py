"""confined.py PROGRAM ... - becomes PROGRAM, under a filter of system calls such as containers
have.

Docker's and Podman's usual filters refuse these calls to a process without capabilities; the list
leaves out calls that need a capability anyway. Runs with Debian's own Python, whose module it needs
(python3-seccomp).
"""

import errno
import os
import sys

import seccomp

REFUSED = ["add_key", "bpf", "get_mempolicy", "io_uring_enter", "io_uring_register",
           "io_uring_setup", "kcmp", "keyctl", "mbind", "move_pages", "name_to_handle_at",
           "open_by_handle_at", "perf_event_open", "personality", "request_key", "set_mempolicy",
           "unshare", "userfaultfd"]

calls = seccomp.SyscallFilter(seccomp.ALLOW)
for name in REFUSED:
    calls.add_rule(seccomp.ERRNO(errno.EPERM), name)
calls.load()
os.execvp(sys.argv[1], sys.argv[1:])
