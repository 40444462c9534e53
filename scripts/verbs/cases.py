"""The programs that scripts/interop-verbs runs, and the checks that each did its work."""

import dataclasses
import filecmp
import os
import pathlib
import re
import shutil
import typing

HOST = "127.0.0.1"
# The host's own address, for programs that find the device by it.
OWN = "198.51.100.1"
# The same over IPv6: the loopback address, an address of the host, and a link-local address of it.
HOST6 = "::1"
OWN6 = "fd00:5::1"
LINK6 = "fe80::5"
# The interface with these addresses.
INTERFACE = "own0"
PRELOAD = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


@dataclasses.dataclass
class Run:
    """A run of a case: its room, its folder, and the port that it may use. `host` and `host6` are
    the RNIC's addresses, `link6` is a link-local one with its scope."""

    room: typing.Any
    place: typing.Any
    port: int

    @property
    def host(self):
        return self.room.host

    @property
    def host6(self):
        return OWN6 if self.room.appliance else HOST6

    @property
    def link6(self):
        # The appliance's port is no interface of the host, so its scope is its own number.
        return f"{LINK6}%{1 if self.room.appliance else INTERFACE}"

    def text(self, name):
        return (self.place / name).read_text(errors="replace")


@dataclasses.dataclass
class Case:
    """A case of one or two programs. `server` and `client` give their command lines."""

    name: str
    client: typing.Callable
    server: typing.Callable | None = None
    check: typing.Callable | None = None
    prepare: typing.Callable | None = None
    client_env: dict = dataclasses.field(default_factory=dict)
    server_env: dict = dataclasses.field(default_factory=dict)
    client_codes: tuple = (0,)
    server_codes: tuple = (0,)
    # True if the server runs without end, so that the script ends it.
    server_ends: bool = True
    # The test whether the server listens, if it does not listen at the case's port of the RNIC.
    listens: typing.Callable | None = None
    runs: int = 50
    # Number of runs with --quick; 0 if another case tests the same parts of Heddle.
    quick: int = 1
    # A message of a program that could not measure because the machine was too busy: such a run is
    # repeated.
    void: str | None = None
    # True if it can run beside other cases; false for a program with a fixed port.
    mixes: bool = True
    # True if it can run on an appliance; false for a program that looks for 127.0.0.1 there.
    anywhere: bool = True
    # The folders of the programs of examples/libibverbs that it runs.
    examples: tuple = ()


def says(name, *patterns):
    """Returns a check that a log matches each pattern."""
    def check(run):
        text = run.text(name)
        missing = [p for p in patterns if not re.search(p, text, re.MULTILINE)]
        return f"{name} has no {missing[0]!r}:\n{text[-2000:]}" if missing else None
    return check


def silent(run):
    """Returns a check that no log reports an error."""
    for name in ("client.log", "server.log"):
        text = run.text(name)
        if found := re.search(r"^.*(error|fail|mismatch|corrupt|unable|couldn't).*$", text,
                              re.MULTILINE | re.IGNORECASE):
            return f"{name}: {found[0]}"
    return None


def both(*checks):
    def check(run):
        return next((wrong for c in checks if (wrong := c(run))), None)
    return check


def the_host(run):
    return run.host


def rping(name, *options, server=None, host=the_host, **more):
    """Returns a case for rping. `host` gives the server's address, and `server` the address at
    which it listens if that is another."""
    return Case(f"rping{name}", runs=100, check=more.pop("check", None),
                server=lambda r: ["rping", "-s", "-a", server or host(r), "-p", str(r.port),
                                  *options],
                client=lambda r: ["rping", "-c", "-a", host(r), "-p", str(r.port), *options],
                **more)


def pair(name, program, server=(), client=(), check=silent, runs=100, port="-p", host="-s",
         address=the_host, **more):
    """Returns a case for a program of rdmacm-utils that is both server and client."""
    return Case(name, runs=runs, check=check, **more,
                server=lambda r: [program, port, str(r.port), *server],
                client=lambda r: [program, port, str(r.port), host, address(r), *client])


def perftest(name, program, *options, quick=1):
    """Returns a case for a program of perftest. Its table must have a row with figures above 0."""
    def check(run):
        rows = re.findall(r"^ *(\d+) +(\d+) +([\d.]+) +([\d.]+)", run.text("client.log"),
                          re.MULTILINE)
        if not rows:
            return f"no row in the table:\n{run.text('client.log')[-1500:]}"
        return (None if all(float(row[3]) > 0 or float(row[2]) > 0 for row in rows)
                else f"a row of nothing: {rows}")
    # perftest compares the processor's clock with the system's, and gives up its report if these
    # once differ.
    return Case(f"{program}{name}", check=check, quick=quick, void=r"Correlation coefficient r\^2",
                server=lambda r: [program, "-R", "-p", str(r.port), *options],
                client=lambda r: [program, "-R", "-p", str(r.port), *options, r.host])


def bench(program, op, mode, size, *iters):
    """Returns a case in which `heddle bench` is the client of a server of perftest."""
    def client(r):
        return [str(r.room.heddle), "bench", "--socket", str(r.room.socket), "--perftest",
                "--connect", f"{r.host}:{r.port}", "--op", op, "--mode", mode, "--size", size,
                *(["--iters", *iters] if iters else ["--duration", "500ms"])]
    # The server shows the figures that the client reports, or its own.
    figures = (says("server.log", rf"^ *{size} +\d+ +[\d.]+ +[1-9]") if mode == "bw"
               else lambda run: None)
    row = says("client.log", rf"^{op} +{mode} +\S+ +1 +\d+ +[1-9]")
    return Case(f"bench-{program}", check=both(row, figures), anywhere=False,
                server=lambda r: [program, "-R", "-F", "-p", str(r.port), "-s", size,
                                  *(["-n", *iters] if iters else [])],
                client=client)


def make_file(run):
    """Makes a file of a little over 8 MiB to copy."""
    (run.place / "from").write_bytes(os.urandom((8 << 20) + 123))
    for name in ("from",):
        os.chown(run.place / name, run.room.user.pw_uid, run.room.user.pw_gid)


def same_file(run):
    same = filecmp.cmp(run.place / "from", run.place / "to", shallow=False)
    return None if same else "the copy differs"


def sockets(name, server, client, **more):
    """Returns a case for a program of kernel sockets, which librspreload redirects to rsockets."""
    return Case(name, server=server, client=client, server_env={"LD_PRELOAD": PRELOAD},
                client_env={"LD_PRELOAD": PRELOAD}, **more)


def own_script(name):
    """Returns a step that puts a script of ours where the programs' user can read it."""
    def prepare(run):
        shutil.copy2(pathlib.Path(__file__).parent / name, run.place / name)
    return prepare


def migration(name, *options, quick=1):
    """Returns a case for QEMU's live migration. A script starts the QEMUs and compares the guest's
    memory."""
    return Case(f"qemu-migrate{name}", runs=20, quick=quick, prepare=own_script("migrate.py"),
                anywhere=False,
                client=lambda r: ["sh", "-c",
                                  f"cd {r.place} && exec python3 migrate.py {r.port} "
                                  f"{' '.join(options)}"])


# libiscsi's iSER moves at most 256 KiB by one command, and QEMU does not know that: blkdebug makes
# it ask for less.
ISCSI = ("driver=blkdebug,max-transfer=131072,image.driver=iscsi,image.transport=iser,"
         "image.portal=$portal,image.target=iqn.heddle,image.lun=1,image.initiator-name=iqn.client")
# tgtd admits a client over iSER only if both its address and its name are bound to the target.
ISER = f"""set -e
admin() {{ tgtadm --lld iser --mode "$@" --tid 1; }}
admin target --op new --targetname iqn.heddle
admin logicalunit --op new --lun 1 --backing-store "$PWD/disk" --bstype rdwr
admin target --op bind --initiator-address ALL
admin target --op bind --initiator-name iqn.client
iscsi-inq -i iqn.client iser://$portal/iqn.heddle/1
qemu-img convert -n -f raw from --target-image-opts {ISCSI}
cmp from disk
qemu-img convert --image-opts {ISCSI} -O raw to
iscsi-perf -i iqn.client -t 1 -m 16 -b 64 iser://$portal/iqn.heddle/1
"""


def iser(run, command):
    """Returns a shell command line in the run's folder, with the settings for tgtd and its
    clients."""
    control = run.room.home / f"tgtd-{run.port}"
    return ["sh", "-c",
            f"cd {run.place} && export TGT_IPC_SOCKET={control} portal={run.host}:{run.port}; "
            f"{command}"]


def make_disk(mib):
    """Returns a step that makes a file to copy, and an empty disk of that size."""
    def prepare(run):
        with open(run.place / "from", "wb") as out:
            for _ in range(mib):
                out.write(os.urandom(1 << 20))
        with open(run.place / "disk", "wb") as out:
            out.truncate(mib << 20)
        for name in ("from", "disk"):
            os.chown(run.place / name, run.room.user.pw_uid, run.room.user.pw_gid)
    return prepare


def job(run):
    return ["--name=job", "--ioengine=rdma", f"--port={run.port}", "--bs=64k", "--size=64m",
            "--iodepth=16"]


SUITE = pathlib.Path(__file__).with_name("pyverbs_suite.py")
# So many tests are in the suite: fewer would mean that some are not found.
SUITE_TESTS = 231
# The number of tests in the suite. A smaller number means that unittest does not find some.


def copy_suite(run):
    """Copies the suite, because the programs' user cannot read the folder of this file."""
    shutil.copy(SUITE, run.place)
    (run.place / SUITE.name).chmod(0o644)


def all_pass(run):
    """Checks that unittest has run all tests of the suite, and that none has failed or was
    skipped."""
    text = run.text("client.log")
    found = re.search(r"^Ran (\d+) tests in .*\n\nOK\s*\Z", text, re.MULTILINE)
    if not found:
        return f"the suite does not end in OK:\n{text[-2000:]}"
    enough = int(found[1]) >= SUITE_TESTS
    return None if enough else f"the suite ran {found[1]} tests of {SUITE_TESTS}"


def tcp(run, port=None):
    """Returns true if a program listens at a port of the kernel's own TCP: the case's port by
    default."""
    return f":{port or run.port:04X} 00000000:0000 0A" in (
        pathlib.Path("/proc/net/tcp").read_text()
        + pathlib.Path("/proc/net/tcp6").read_text().replace("00000000" * 4, "00000000"))


def pingpong(name, *options, host=OWN):
    """Returns a case for libfabric's own test. Its two ends also talk over the kernel's TCP."""
    return Case(f"fi_pingpong-{name}", listens=tcp, check=says("client.log", r"^1m +10 +=10 "),
                server=lambda r: ["fi_pingpong", "-p", "verbs", "-B", str(r.port), "-c", *options],
                client=lambda r: ["fi_pingpong", "-p", "verbs", "-P", str(r.port), "-c", *options,
                                  host])


def example(run, folder):
    """Returns the path of a program of examples/libibverbs."""
    return str(run.room.home / "programs" / f"example-{folder}")


def mirror(server, client):
    """Returns a case for two programs that speak the same protocol, each in its own language."""
    return Case(f"mirror-{server}-{client}", examples=(server, client), quick=0,
                check=says("client.log", r"^10 rounds of 300000 bytes came back mirrored$"),
                server=lambda r: [example(r, server), "server", str(r.port)],
                client=lambda r: [example(r, client), "client", r.host, str(r.port)])


ALL = [
    Case("ibv_devices", client=lambda r: ["ibv_devices"],
         check=says("client.log", r"^\s+heddle0\s+[0-9a-f]{16}$")),
    Case("ibv_devinfo", client=lambda r: ["ibv_devinfo", "-v"],
         check=says("client.log", r"transport:\s+iWARP", r"state:\s+PORT_ACTIVE",
                    r"link_layer:\s+Ethernet", r"GID\[ *0\]:\s+(0000:){5}ffff:c633:6401",
                    r"GID\[ *1\]:\s+(0000:){5}ffff:7f00:0001",
                    r"GID\[ *\d+\]:\s+fd00:0005:(0000:){5}0001",
                    r"GID\[ *\d+\]:\s+(0000:){7}0001"), anywhere=False),
    rping("", "-C", "10", "-V"),
    rping("-large", "-C", "100", "-V", "-S", "20000"),
    rping("-verbose", "-C", "5", "-v", "-V", check=says("client.log", r"ping data: rdma-ping-4")),
    rping("-ipv6", "-C", "10", "-V", host=lambda r: r.host6),
    rping("-link-local", "-C", "10", "-V", host=lambda r: r.link6),
    # A listener at `::` takes both families.
    rping("-wildcard6", "-C", "10", "-V", server="::", host=lambda r: r.host6),
    rping("-both-families", "-C", "10", "-V", server="::"),
    pair("ucmatose-ipv6", "ucmatose", ("-f", "ipv6", "-b", "::"), ("-f", "ipv6"),
         check=says("client.log", r"return status 0"), address=lambda r: r.host6),
    pair("rstream-ipv6", "rstream", ("-f", "ipv6", "-b", "::", "-T", "v", "-I", "20", "-C", "20"),
         ("-f", "ipv6", "-T", "v", "-I", "20", "-C", "20"), address=lambda r: r.host6),
    pair("cmtime-ipv6", "cmtime", ("-b", "::", "-c", "50"), ("-c", "50"), server_ends=False,
         check=says("client.log", r"^connect\s"), address=lambda r: r.host6),
    pair("ucmatose", "ucmatose", check=says("client.log", r"return status 0")),
    pair("ucmatose-many", "ucmatose", ("-c", "8", "-C", "50", "-S", "4000"),
         ("-c", "8", "-C", "50", "-S", "4000"),
         check=says("client.log", r"return status 0")),
    pair("ucmatose-migrate", "ucmatose", ("-m",), ("-m",),
         check=says("client.log", r"return status 0")),
    *[Case(f"rdma_{kind}client", runs=100,
           check=both(says("client.log", r"end 0"), says("server.log", r"end 0")),
           server=lambda r, kind=kind: [f"rdma_{kind}server", "-p", str(r.port)],
           client=lambda r, kind=kind: [f"rdma_{kind}client", "-s", r.host, "-p", str(r.port)])
      for kind in ("", "x")],
    # The server of cmtime runs without end.
    pair("cmtime", "cmtime", ("-c", "50"), ("-c", "50"), check=says("client.log", r"^connect\s"),
         server_ends=False),
    pair("riostream", "riostream", ("-T", "v"), ("-T", "v")),
    pair("rstream", "rstream", ("-T", "v", "-I", "20", "-C", "20"),
         ("-T", "v", "-I", "20", "-C", "20")),
    pair("rstream-blocking", "rstream", ("-T", "b", "-T", "v", "-I", "20", "-C", "20"),
         ("-T", "b", "-T", "v", "-I", "20", "-C", "20")),
    # If rstream's client finds the end of the connection together with the last data, it takes the
    # end for an error (POLLHUP, 16), because it does not look at POLLIN first. It has compared all
    # received data before.
    pair("rstream-async", "rstream", ("-T", "a", "-T", "v", "-I", "20", "-C", "20"),
         ("-T", "a", "-T", "v", "-I", "20", "-C", "20"), check=says("server.log", r"^custom\s"),
         client_codes=(0, 16)),
    *[pair(f"rstream-{size}", "rstream",
           *2 * [("-S", str(size), "-T", "v", "-I", "50", "-C", "10")])
      for size in (64, 65536, 1 << 20)],
    Case("rcopy", runs=100, prepare=make_file, check=same_file, server_ends=False,
         server=lambda r: ["rcopy", "-p", str(r.port)],
         client=lambda r: ["rcopy", str(r.place / "from"), f"{r.host}:{r.place / 'to'}", "-p",
                           str(r.port)]),
    *[perftest(name, program, *options, quick=int(name != "-all" or program == "ib_write_bw"))
      for program in ("ib_write_bw", "ib_read_bw", "ib_send_bw")
      for name, options in (("", ()), ("-all", ("-a", "-n", "100")),
                            ("-16", ("-q", "16", "-n", "1000")),
                            ("-both", ("-b", "-n", "1000")))],
    # perftest has no such option for Writes. With ib_send_bw it waits for good over iWARP if the
    # receiver is late with a credit (docs/guide/programs.md).
    perftest("-events", "ib_read_bw", "-e", "-n", "1000"),
    perftest("-srq", "ib_send_bw", "-r", "64", "--use-srq", "-n", "1000"),
    *[perftest(name, program, *options, quick=int(name != "-all" or program == "ib_send_lat"))
      for program in ("ib_write_lat", "ib_read_lat", "ib_send_lat")
      for name, options in (("", ()), ("-all", ("-a", "-n", "100")))],
    *[perftest("-events", program, "-e", "-n", "1000")
      for program in ("ib_read_lat", "ib_send_lat")],
    *[perftest(name, program, *options)
      for program in ("ib_atomic_bw", "ib_atomic_lat")
      for name, options in (("", ()), ("-swap", ("-A", "CMP_AND_SWAP")))],
    bench("ib_write_bw", "write", "bw", "65536"),
    bench("ib_read_bw", "read", "bw", "65536"),
    bench("ib_send_bw", "send", "bw", "65536", "3000"),
    bench("ib_write_lat", "write", "lat", "8", "1000"),
    bench("ib_read_lat", "read", "lat", "8"),
    bench("ib_send_lat", "send", "lat", "8", "1000"),
    # OpenBSD's netcat asks for an option that rsockets do not know (SO_REUSEPORT), and accepts by a
    # call that librspreload does not redirect (accept4).
    sockets("nc",
            lambda r: ["sh", "-c", f"nc.traditional -l -s {r.host} -p {r.port} > {r.place}/to"],
            lambda r: ["sh", "-c", f"nc.traditional -q 0 {r.host} {r.port} < {r.place}/from"],
            prepare=make_file, check=same_file),
    sockets("iperf", lambda r: ["iperf", "-s", "-B", r.host, "-p", str(r.port)],
            lambda r: ["iperf", "-c", r.host, "-p", str(r.port), "-t", "1"],
            check=says("client.log", r"bits/sec"),
            server_ends=False),
    sockets("iperf-ipv6",
            lambda r: ["iperf", "-V", "-s", "-B", r.host6, "-p", str(r.port)],
            lambda r: ["iperf", "-V", "-c", r.host6, "-p", str(r.port), "-t", "1"],
            check=says("client.log", r"bits/sec"), server_ends=False),
    Case("qperf", server=lambda r: ["qperf"], server_ends=False, mixes=False,
         listens=lambda r: tcp(r, 19765),
         client=lambda r: ["qperf", "-t", "1", "-cm1", r.host, "rc_bw", "rc_bi_bw", "rc_lat",
                           "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_read_bw",
                           "rc_rdma_read_lat", "rc_rdma_write_poll_lat", "rc_compare_swap_mr",
                           "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"],
         check=says("client.log", r"^ver_rc_fetch_add:\n +msg_rate")),
    # The client is the side that writes, whatever verb it has.
    *[Case(f"fio-{verb}", check=says("client.log", r"err= 0:"),
           server=lambda r: ["fio", *job(r), "--rw=read"],
           client=lambda r, verb=verb: ["fio", *job(r), f"--hostname={r.host}", f"--verb={verb}",
                                        "--rw=write"])
      for verb in ("write", "read", "send")],
    Case("fi_info", client=lambda r: ["fi_info", "-p", "verbs"],
         check=says("client.log", r"protocol: FI_PROTO_IWARP", r"^provider: verbs;ofi_rxm")),
    pingpong("msg", "-e", "msg"),
    pingpong("msg-ipv6", "-6", "-e", "msg", host=OWN6),
    pingpong("rxm", "-e", "rdm"),
    pingpong("tagged", "-e", "rdm", "-m", "tagged"),
    Case("pyverbs", runs=20, prepare=copy_suite, check=all_pass, anywhere=False,
         client=lambda r: ["/usr/bin/python3", str(r.place / SUITE.name), "--port", str(r.port)]),
    *[mirror(server, client) for server in ("rust", "go") for client in ("rust", "go")],
    Case("openmpi", examples=("mpi",), quick=0,
         check=says("client.log", r"^4 ranks exchanged 60 messages each$"),
         client=lambda r: ["mpirun", "--oversubscribe", "-n", "4", "--mca", "pml", "cm", "--mca",
                           "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm",
                           example(r, "mpi")]),
    # tgtd ignores SIGTERM. By default it allocates and registers a pool of 1 GiB. Its timer may
    # send a NOP-In before libiscsi has posted receives, and the NOP-In then waits for one.
    *[Case(f"iser{name}", prepare=make_disk(mib), server_ends=False, runs=runs, quick=quick,
           mixes=mixes,
           server=lambda r: iser(r, "trap 'kill -9 $!' TERM; tgtd -f --iscsi portal=$portal "
                                    f"--iser port={r.port},pool_sz_mb=64 & wait"),
           client=lambda r: iser(r, ISER),
           check=both(same_file, says("client.log", r"Peripheral Device Type:DIRECT_ACCESS",
                                      r"iops average [1-9]")))
      for name, mib, runs, quick, mixes in (("", 8, 20, 1, True),
                                            ("-gigabyte", 1024, 1, 0, False))],
    migration(""),
    migration("-pin", "pin", quick=0),
    migration("-shared", "shared", quick=0),
    migration("-cancel", "cancel", quick=0),
    migration("-pin-cancel", "pin", "cancel"),
]

# Pairs that run until something ends one side. rstream is not among them: at the end of its stream
# it reads again.
ENDLESS = [
    rping("-endless", "-C", "100000000"),
    perftest("-endless", "ib_write_bw", "-D", "600"),
    perftest("-endless", "ib_send_lat", "-n", "10000000"),
    perftest("-endless", "ib_read_lat", "-e", "-n", "10000000"),
]
