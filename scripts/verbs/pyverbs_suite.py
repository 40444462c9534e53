#!/usr/bin/env python3
"""pyverbs_suite.py - tests of Heddle's libibverbs through Debian's python3-pyverbs.

  heddle run -- /usr/bin/python3 scripts/verbs/pyverbs_suite.py [--host A] [--port N]
                                                                [unittest's arguments]

Both ends of nearly every connection are in this process: rdma_cm reports by event channels, so one
thread plays the client and the server in turn. The tests of the synchronous calls start a second
process (`--peer`).

pyverbs holds Python's lock while a call of libibverbs or librdmacm blocks, so no thread could
notice a hang: a watchdog of faulthandler ends the process with a traceback instead.
HEDDLE_SUITE_HOST and HEDDLE_SUITE_PORT are the defaults of the two options.
"""

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs import mem_alloc
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.device import DM, AllocDmAttr, Context, get_device_list
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import ECE, QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR, inc_rkey
from pyverbs.xrcd import XRCD, XRCDInitAttr

NAME = "heddle0"
# A test that takes longer hangs. No test takes a tenth of this on a quiet machine.
DEADLINE = 60
# Completions come in microseconds on a quiet machine.
PATIENCE = 20
SIZE = 16384

LOCAL = e.IBV_ACCESS_LOCAL_WRITE
REMOTE = LOCAL | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
SIGNALED, INLINE = e.IBV_SEND_SIGNALED, e.IBV_SEND_INLINE

# SendOps that iWARP has; Debian's pyverbs names no constant for all of them.
OPERATIONS = (e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_INV | e.IBV_QP_EX_WITH_RDMA_WRITE
              | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | e.IBV_QP_EX_WITH_RDMA_READ
              | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
              | e.IBV_QP_EX_WITH_LOCAL_INV)

OPTIONS = argparse.Namespace(host=os.environ.get("HEDDLE_SUITE_HOST", "127.0.0.1"),
                             port=int(os.environ.get("HEDDLE_SUITE_PORT", "7471")))


def pattern(length, seed=0):
    """Bytes that repeat at no power of two, so that a misplaced block shows."""
    return bytes((seed * 31 + i * 7 + i // 251) % 256 for i in range(length))


def passive(host=None):
    return AddrInfo(src=host or OPTIONS.host, src_service=str(OPTIONS.port),
                    port_space=ce.RDMA_PS_TCP,
                    flags=ce.RAI_PASSIVE)


def active(host=None):
    return AddrInfo(dst=host or OPTIONS.host, dst_service=str(OPTIONS.port),
                    port_space=ce.RDMA_PS_TCP)


class Side:
    """An end of a connection: a queue pair with its queues, and a region that the peer may
    reach."""

    def __init__(self, test, pd, *, cap=None, scq=None, rcq=None, srq=None, sig_all=0,
                 access=REMOTE, operations=0):
        self.test = test
        ctx = test.ctx
        self.pd, self.srq = pd, srq
        self.scq = scq or test.own(CQ(ctx, 64))
        self.rcq = rcq or test.own(CQ(ctx, 64))
        cap = cap or QPCap(max_send_wr=32, max_recv_wr=32, max_send_sge=4, max_recv_sge=4,
                           max_inline_data=128)
        asked = {"qp_type": e.IBV_QPT_RC, "scq": self.scq, "rcq": self.rcq, "srq": srq, "cap": cap,
                 "sq_sig_all": sig_all}
        if operations:
            mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            self.qp = QPEx(ctx, QPInitAttrEx(pd=pd, comp_mask=mask, send_ops_flags=operations,
                                             **asked))
        else:
            self.qp = QP(pd, QPInitAttr(**asked))
        test.own(self.qp)
        self.mr = test.own(MR(pd, SIZE, access))
        self.cmid = self.channel = None

    def sge(self, offset=0, length=SIZE):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def recv(self, wr_id=1, *pieces):
        """Posts a receive over the pieces, or over the whole region."""
        pieces = list(pieces) or [self.sge()]
        (self.srq or self.qp).post_recv(RecvWR(wr_id, len(pieces), pieces))

    def request(self, opcode=e.IBV_WR_SEND, *pieces, wr_id=1, flags=SIGNALED, to=None, imm=0,
                atomic=None):
        """Returns a work request. `to` is an rkey and an address, `atomic` its operands."""
        pieces = list(pieces) or [self.sge()]
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=len(pieces), sg=pieces, imm_data=imm,
                    send_flags=flags)
        if atomic:
            wr.set_wr_atomic(*to, *atomic)
        elif to:
            wr.set_wr_rdma(*to)
        return wr

    def post(self, *args, **more):
        self.qp.post_send(self.request(*args, **more))

    def at(self, offset=0):
        """Returns the peer's address of a byte of the region."""
        return self.mr.rkey, self.mr.buf + offset

    def fill(self, data, offset=0):
        self.mr.write(data, len(data), offset)

    def sent(self, count=1):
        return self.test.completions(self.scq, count)

    def received(self, count=1):
        return self.test.completions(self.rcq, count)

    def state(self):
        return self.qp.query(e.IBV_QP_STATE)[0].qp_state


class Case(unittest.TestCase):
    """A test with an open device. It closes its own objects in reverse order."""

    def setUp(self):
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        self.ctx = self.own(Context(name=NAME))
        self.pd = self.own(PD(self.ctx))

    def own(self, thing):
        self.addCleanup(thing.close)
        return thing

    def refuses(self, code, call, *args, **more):
        """Checks that a call fails with an errno, which is negative for some calls of pyverbs."""
        with self.assertRaises(PyverbsRDMAError) as caught:
            made = call(*args, **more)
            if hasattr(made, "close"):
                made.close()
        self.assertEqual(caught.exception.error_code, code, caught.exception)

    def until(self, ask, what):
        """Repeats a question until its answer is true."""
        end = time.monotonic() + PATIENCE
        while not (answer := ask()):
            self.assertLess(time.monotonic(), end, f"no {what} in {PATIENCE} s")
            time.sleep(0.0002)
        return answer

    def completions(self, cq, count=1):
        """Waits for this many completions."""
        found = []

        def poll():
            found.extend(cq.poll(count - len(found))[1])
            return len(found) == count
        self.until(poll, f"{count} completions")
        return found

    def silent(self, *queues):
        """Checks that there is no completion, and that none comes within a moment."""
        time.sleep(0.01)
        for cq in queues:
            self.assertEqual(cq.poll()[0], 0)

    def check(self, wc, wr_id, opcode=None, length=None, status=e.IBV_WC_SUCCESS):
        self.assertEqual((wc.wr_id, wc.status), (wr_id, status))
        if opcode is not None:
            self.assertEqual(wc.opcode, opcode)
        if length is not None:
            self.assertEqual(wc.byte_len, length)

    def expect(self, channel, kind):
        """Takes the next event of a channel and returns its private data."""
        event = CMEvent(channel)
        try:
            self.assertEqual(event.event_type, kind, event.event_str())
            # pyverbs reads through a null pointer if an event has no private data that it counts.
            carries = kind in (ce.RDMA_CM_EVENT_ESTABLISHED, ce.RDMA_CM_EVENT_REJECTED)
            return event.private_data if carries else b""
        finally:
            event.close()

    def request(self, channel, listener):
        """Takes a connect request, and returns the new id and the private data."""
        event = CMEvent(channel)
        try:
            self.assertEqual(event.event_type, ce.RDMA_CM_EVENT_CONNECT_REQUEST, event.event_str())
            return self.own(CMID(creator=event, listen_id=listener)), event.private_data
        finally:
            event.close()

    def listen(self, backlog=8):
        """Returns an id that listens, and its channel."""
        channel = self.own(CMEventChannel())
        listener = self.own(CMID(creator=channel))
        listener.bind_addr(passive())
        listener.listen(backlog)
        return channel, listener

    def resolve(self):
        """Returns an id whose route to the listener is known, and its channel."""
        channel = self.own(CMEventChannel())
        cmid = self.own(CMID(creator=channel))
        cmid.resolve_addr(active())
        self.expect(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        cmid.resolve_route()
        self.expect(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        return channel, cmid

    def to_init(self, side):
        attr, mask = side.cmid.init_qp_attr(e.IBV_QPS_INIT)
        side.qp.modify(attr, mask)

    def param(self, side, **more):
        return ConnParam(resources=8, depth=8, srq=int(side.srq is not None), qp_num=side.qp.qp_num,
                         **more)

    def join(self, client, server, listening=None):
        """Connects two sides, which have queue pairs already."""
        channel, listener = listening or self.listen()
        client.channel, client.cmid = self.resolve()
        self.to_init(client)
        client.cmid.connect(self.param(client))
        server.channel = channel
        server.cmid, _ = self.request(channel, listener)
        self.to_init(server)
        server.cmid.accept(self.param(server))
        self.expect(client.channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        self.expect(server.channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        return client, server

    def pair(self, client=None, server=None, **both):
        """Returns two connected sides."""
        made = [Side(self, self.pd, **(both | (more or {}))) for more in (client, server)]
        return self.join(*made)

    def next_event(self, kind):
        """Takes and acknowledges asynchronous events up to one of a kind, skipping those that any
        test may bring."""
        event, usual = None, {e.IBV_EVENT_COMM_EST, e.IBV_EVENT_PORT_ACTIVE, e.IBV_EVENT_GID_CHANGE,
                              e.IBV_EVENT_QP_FATAL} - {kind}
        while not event or event.event_type in usual:
            event = self.ctx.get_async_event()
            event.ack()
        self.assertEqual(event.event_type, kind)


class DeviceTest(Case):
    def test_list_has_one_rnic(self):
        (device,) = get_device_list()
        self.assertEqual(device.name.decode(), NAME)
        self.assertEqual((device.node_type, device.transport_type),
                         (e.IBV_NODE_RNIC, e.IBV_TRANSPORT_IWARP))
        self.assertNotEqual(device.guid, 0)
        # pyverbs reverses the byte order of one of the two.
        guid = self.ctx.query_device().node_guid.to_bytes(8, sys.byteorder)
        self.assertEqual(device.guid, int.from_bytes(guid, "big"))
        self.assertIn("RNIC", str(device))

    def test_context_of_unknown_device_is_refused(self):
        with self.assertRaises(PyverbsRDMAError):
            Context(name="heddle9")

    def test_contexts_are_independent(self):
        other = Context(name=NAME)
        pd = PD(other)
        mr = MR(pd, 100, LOCAL)
        self.assertNotEqual(mr.lkey, self.own(MR(self.pd, 100, LOCAL)).lkey)
        other.close()
        self.assertEqual(self.ctx.query_device().phys_port_cnt, 1)

    def test_context_has_a_completion_vector_and_a_name(self):
        self.assertEqual((self.ctx.num_comp_vectors, self.ctx.name), (1, NAME))

    def test_device_has_limits(self):
        attr = self.ctx.query_device()
        for name in ("max_qp", "max_qp_wr", "max_cq", "max_cqe", "max_mr", "max_pd", "max_srq",
                     "max_srq_wr", "max_mw", "max_qp_rd_atom", "max_qp_init_rd_atom", "max_sge",
                     "max_srq_sge", "max_mr_size"):
            self.assertGreater(getattr(attr, name), 0, name)
        self.assertEqual((attr.phys_port_cnt, attr.max_pkeys, attr.max_sge_rd), (1, 1, 1))
        self.assertTrue(attr.device_cap_flags & e.IBV_DEVICE_MEM_WINDOW)
        self.assertTrue(attr.page_size_cap & mmap.PAGESIZE)
        self.assertIn("Max QP", str(attr))

    def test_device_has_nothing_for_datagrams(self):
        attr = self.ctx.query_device()
        self.assertEqual((attr.max_ah, attr.max_mcast_grp, attr.max_raw_ethy_qp, attr.max_ee),
                         (0, 0, 0, 0))

    def test_extended_attributes_begin_with_plain_ones(self):
        plain, extended = self.ctx.query_device(), self.ctx.query_device_ex()
        for name in ("max_qp", "max_cqe", "max_mr", "node_guid", "fw_version", "device_cap_flags"):
            self.assertEqual(getattr(extended.orig_attr, name), getattr(plain, name), name)
        self.assertEqual(extended.phys_port_cnt_ex, 1)
        self.assertEqual((extended.completion_timestamp_mask, extended.hca_core_clock),
                         (2 ** 64 - 1, 1_000_000))
        self.assertEqual((extended.max_dm_size, extended.tm_caps.max_num_tags,
                          extended.tso_caps.max_tso), (0, 0, 0))
        self.assertEqual(extended.odp_caps.general_caps, 0)

    def test_clock_runs(self):
        first, second = self.ctx.query_rt_values_ex(), self.ctx.query_rt_values_ex()
        self.assertGreater(second[1], first[1])

    def test_port_is_active(self):
        port = self.ctx.query_port(1)
        self.assertEqual((port.state, port.link_layer),
                         (e.IBV_PORT_ACTIVE, e.IBV_LINK_LAYER_ETHERNET))
        self.assertEqual((port.pkey_tbl_len, port.lid, port.sm_lid), (1, 0, 0))
        self.assertGreaterEqual(port.max_mtu, port.active_mtu)
        self.assertGreaterEqual(port.gid_tbl_len, 1)
        self.assertGreaterEqual(port.max_msg_sz, 1 << 30)
        self.assertIn("ACTIVE", str(port).upper())

    def test_port_beyond_the_last_is_refused(self):
        for port in (0, 2, 255):
            self.refuses(errno.EINVAL, self.ctx.query_port, port)

    def test_gid_table_maps_addresses(self):
        table = self.ctx.query_gid_table(64)
        self.assertEqual(len(table), self.ctx.query_port(1).gid_tbl_len)
        mapped = "::ffff:" + socket.inet_ntoa(socket.inet_aton(OPTIONS.host))
        wanted = socket.inet_pton(socket.AF_INET6, mapped)
        gids = [socket.inet_pton(socket.AF_INET6, entry.gid_str()) for entry in table]
        self.assertIn(wanted, gids)
        for index, entry in enumerate(table):
            self.assertEqual((entry.gid_index, entry.port_num, entry.gid_type),
                             (index, 1, e.IBV_GID_TYPE_IB))
            single = self.ctx.query_gid_ex(1, index)
            self.assertEqual(single.gid_str(), entry.gid_str())
            self.assertEqual(self.ctx.query_gid(1, index).gid, entry.gid_str())
            if gids[index] == wanted and OPTIONS.host.startswith("127."):
                self.assertEqual(entry.ndev_ifindex, socket.if_nametoindex("lo"))

    def test_gid_beyond_the_table_is_refused(self):
        length = self.ctx.query_port(1).gid_tbl_len
        self.refuses(errno.ENODATA, self.ctx.query_gid_ex, 1, length)
        self.refuses(-1, self.ctx.query_gid, 1, length)
        self.refuses(errno.EINVAL, self.ctx.query_gid_ex, 2, 0)
        self.refuses(-1, self.ctx.query_gid, 2, 0)
        self.refuses(-errno.EINVAL, self.ctx.query_gid_table, 0)
        self.refuses(errno.EOPNOTSUPP, self.ctx.query_gid_ex, 1, 0, 1)
        self.refuses(-errno.EOPNOTSUPP, self.ctx.query_gid_table, 64, 1)

    def test_gid_type_is_known(self):
        self.assertEqual(self.ctx.query_gid_type(1, 0), e.IBV_GID_TYPE_SYSFS_IB_ROCE_V1)
        self.refuses(errno.EINVAL, self.ctx.query_gid_type, 2, 0)

    def test_pkey_table_has_the_default_key(self):
        self.assertEqual(self.ctx.query_pkey(1, 0), 0xFFFF)
        self.refuses(-1, self.ctx.query_pkey, 1, 1)
        self.refuses(-1, self.ctx.query_pkey, 2, 0)

    def test_context_closes_what_was_made_in_it(self):
        ctx = Context(name=NAME)
        pd, cq = PD(ctx), CQ(ctx, 8)
        mr, mw = MR(pd, 64, LOCAL), MW(pd, e.IBV_MW_TYPE_1)
        qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
        ctx.close()
        for thing in (qp, mw, mr, cq, pd):
            thing.close()


class AbsentTest(Case):
    """Checks that the library refuses every feature that a software RNIC of iWARP lacks, with the
    errno of a device without it."""

    def test_queue_pairs_of_other_types_are_refused(self):
        cq = self.own(CQ(self.ctx, 8))
        for kind in (e.IBV_QPT_UD, e.IBV_QPT_UC, e.IBV_QPT_RAW_PACKET, e.IBV_QPT_XRC_SEND):
            self.refuses(errno.EOPNOTSUPP, QP, self.pd,
                         QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=QPCap()))

    def test_address_handles_are_refused(self):
        route = GlobalRoute(dgid=self.ctx.query_gid(1, 0), sgid_index=0)
        self.refuses(errno.EOPNOTSUPP, AH, self.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))

    def test_device_memory_is_refused(self):
        # pyverbs compares the length with the device's limit, so the library is not even asked for
        # more than 0.
        with self.assertRaises((PyverbsError, PyverbsRDMAError)):
            DM(self.ctx, AllocDmAttr(4096))

    def test_parent_domains_are_refused(self):
        self.refuses(errno.EOPNOTSUPP, ParentDomain, self.ctx, ParentDomainInitAttr(pd=self.pd))

    def test_xrc_domains_are_refused(self):
        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        self.refuses(errno.EOPNOTSUPP, XRCD, self.ctx, XRCDInitAttr(mask, os.O_CREAT, -1))

    def test_shared_receive_queues_of_other_types_are_refused(self):
        for kind in (e.IBV_SRQT_XRC, e.IBV_SRQT_TM):
            attr = SrqInitAttrEx()
            attr.srq_type, attr.pd = kind, self.pd
            attr.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD
            self.refuses(errno.EOPNOTSUPP, SRQ, self.ctx, attr)

    def test_import_is_refused(self):
        self.refuses(errno.EOPNOTSUPP, Context, cmd_fd=0)
        self.refuses(errno.EOPNOTSUPP, PD, self.ctx, handle=0)
        self.refuses(errno.EOPNOTSUPP, MR, self.pd, handle=0)

    def test_advice_is_refused(self):
        mr = self.own(MR(self.pd, 4096, LOCAL))
        self.refuses(errno.EOPNOTSUPP, self.pd.advise_mr, e._IBV_ADVISE_MR_ADVICE_PREFETCH, 0,
                     [SGE(mr.buf, 4096, mr.lkey)])

    def test_enhanced_connection_establishment_is_refused(self):
        side = Side(self, self.pd)
        self.refuses(errno.EOPNOTSUPP, side.qp.query_ece)
        self.refuses(errno.EOPNOTSUPP, side.qp.set_ece, ECE(vendor_id=0x15B3, options=1))

    def test_ids_for_datagrams_have_no_queue_pair(self):
        channel = self.own(CMEventChannel())
        cmid = self.own(CMID(creator=channel, port_space=ce.RDMA_PS_UDP))
        cmid.resolve_addr(active())
        self.expect(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        cmid.resolve_route()
        self.expect(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        self.refuses(errno.EOPNOTSUPP, cmid.create_qp,
                     QPInitAttr(qp_type=e.IBV_QPT_UD, cap=QPCap()))

    def test_multicast_is_refused(self):
        _, cmid = self.resolve()
        self.refuses(errno.EINVAL, cmid.join_multicast, active("239.1.2.3"))


class MemoryTest(Case):
    def test_region_has_keys_and_length(self):
        regions = [self.own(MR(self.pd, length, LOCAL)) for length in (1, 4096, 4097, 1 << 20)]
        self.assertEqual([mr.length for mr in regions], [1, 4096, 4097, 1 << 20])
        self.assertEqual(len({mr.rkey for mr in regions}), 4)
        for mr in regions:
            self.assertNotEqual(mr.lkey, 0)
            self.assertIn("lkey", str(mr))

    def test_region_keeps_what_is_written(self):
        mr = self.own(MR(self.pd, 10000, REMOTE))
        data = pattern(9000, 3)
        mr.write(data, 9000, 500)
        self.assertEqual(mr.read(9000, 500), data)
        self.assertEqual(mr.read(500, 0), bytes(500))
        self.assertEqual(mr.read(500, 9500), bytes(500))

    def test_region_of_no_length_is_refused(self):
        self.refuses(errno.EINVAL, MR, self.pd, 0, LOCAL)

    def test_remote_rights_need_local_ones(self):
        for access in (e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC,
                       e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ):
            self.refuses(errno.EINVAL, MR, self.pd, 4096, access)

    def test_region_takes_each_set_of_rights(self):
        for access in (0, LOCAL, e.IBV_ACCESS_REMOTE_READ, LOCAL | e.IBV_ACCESS_REMOTE_WRITE,
                       LOCAL | e.IBV_ACCESS_REMOTE_ATOMIC, REMOTE, REMOTE | e.IBV_ACCESS_MW_BIND,
                       REMOTE | e.IBV_ACCESS_ZERO_BASED, REMOTE | e.IBV_ACCESS_RELAXED_ORDERING):
            with self.subTest(access=access):
                self.own(MR(self.pd, 4096, access))

    def test_unknown_right_is_refused(self):
        self.refuses(errno.EINVAL, MR, self.pd, 4096, LOCAL | 1 << 12)

    def test_paging_on_demand_is_refused(self):
        self.refuses(errno.EOPNOTSUPP, MR, self.pd, 4096, LOCAL | e.IBV_ACCESS_ON_DEMAND)
        self.refuses(errno.EOPNOTSUPP, MR, self.pd, access=LOCAL | e.IBV_ACCESS_ON_DEMAND,
                     implicit=True)

    def test_region_over_memory_of_the_program(self):
        where = mem_alloc.mmap(length=3 * mmap.PAGESIZE)
        self.addCleanup(mem_alloc.munmap, where, 3 * mmap.PAGESIZE)
        mr = self.own(MR(self.pd, 5000, REMOTE, address=where + 100))
        self.assertEqual(mr.buf, where + 100)
        mr.write(b"edge", 4, 4996)
        self.assertEqual(mem_alloc.read(where + 5096, 4), b"edge")

    def test_region_over_memory_of_malloc(self):
        where = mem_alloc.malloc(300)
        self.addCleanup(mem_alloc.free, where)
        mem_alloc.write(where, b"before", 6)
        mr = self.own(MR(self.pd, 300, LOCAL, address=where))
        self.assertEqual(mr.read(6, 0), b"before")

    def shared(self, length, file=None):
        """Returns the address of a shared mapping."""
        memory = mmap.mmap(-1 if file is None else file, length)
        byte = ctypes.c_char.from_buffer(memory)
        self.addCleanup(memory.close)
        # The mapping cannot be closed while this refers to it.
        where = ctypes.addressof(byte)
        del byte
        return where

    def test_region_over_memory_that_others_share(self):
        file = os.memfd_create("common")
        self.addCleanup(os.close, file)
        os.ftruncate(file, 3 * mmap.PAGESIZE)
        where = self.shared(3 * mmap.PAGESIZE, file)
        client, server = self.pair()
        mr = self.own(MR(server.pd, 5000, REMOTE, address=where + 100))
        client.fill(pattern(5000, 4))
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 5000), to=(mr.rkey, where + 100))
        self.check(client.sent()[0], 1)
        self.until(lambda: os.pread(file, 5000, 100) == pattern(5000, 4), "data in the file")
        os.pwrite(file, pattern(5000, 5), 100)
        client.post(e.IBV_WR_RDMA_READ, client.sge(6000, 5000), to=(mr.rkey, where + 100))
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.assertEqual(client.mr.read(5000, 6000), pattern(5000, 5))
        mr.close()
        self.assertEqual(os.pread(file, 5000, 100), pattern(5000, 5))

    def test_file_that_shrinks_ends_the_device_of_its_program_alone(self):
        client, server = self.pair()
        # This program listens at its own port.
        port = str(OPTIONS.port + 20000)
        shrinks = subprocess.run([sys.executable, __file__, "--peer", "shrink", "--host",
                                  OPTIONS.host, "--port", port], timeout=DEADLINE, check=False)
        self.assertEqual(shrinks.returncode, 0)
        client.fill(b"others go on")
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 12), to=server.at())
        self.check(client.sent()[0], 1)
        self.until(lambda: server.mr.read(12, 0) == b"others go on", "data")

    def test_region_over_shared_memory_without_a_file_is_refused(self):
        self.refuses(errno.EOPNOTSUPP, MR, self.pd, 100, LOCAL, address=self.shared(mmap.PAGESIZE))

    def test_region_over_no_memory_is_refused(self):
        where = mem_alloc.mmap(length=mmap.PAGESIZE)
        mem_alloc.munmap(where, mmap.PAGESIZE)
        self.refuses(errno.EFAULT, MR, self.pd, mmap.PAGESIZE, LOCAL, address=where)

    def test_region_that_wraps_is_refused(self):
        self.refuses(errno.EINVAL, MR, self.pd, 8192, LOCAL, address=2 ** 64 - 4096)

    def test_regions_may_overlap(self):
        first = self.own(MR(self.pd, 8192, LOCAL))
        second = self.own(MR(self.pd, 4096, REMOTE, address=first.buf + 1000))
        first.write(b"shared", 6, 1000)
        self.assertEqual(second.read(6, 0), b"shared")
        second.close()
        self.assertEqual(first.read(6, 1000), b"shared")

    def test_region_may_be_closed_twice(self):
        mr = MR(self.pd, 64, LOCAL)
        mr.close()
        mr.close()

    def test_memory_outlives_its_registration(self):
        where = mem_alloc.mmap(length=mmap.PAGESIZE)
        self.addCleanup(mem_alloc.munmap, where, mmap.PAGESIZE)
        mr = MR(self.pd, mmap.PAGESIZE, REMOTE, address=where)
        mr.write(b"stays", 5, 7)
        mr.close()
        self.assertEqual(mem_alloc.read(where + 7, 5), b"stays")

    def test_change_of_rights_gives_new_keys(self):
        client, server = self.pair(server={"access": LOCAL})
        rkey = server.mr.rkey
        server.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=REMOTE)
        self.assertNotEqual(server.mr.rkey, rkey)
        client.fill(b"allowed now")
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 11), to=server.at())
        self.check(client.sent()[0], 1)
        self.until(lambda: server.mr.read(11, 0) == b"allowed now", "data")

    def test_change_of_memory_and_domain(self):
        mr = self.own(MR(self.pd, 4096, LOCAL))
        where = mem_alloc.mmap(length=8192)
        self.addCleanup(mem_alloc.munmap, where, 8192)
        pd = self.own(PD(self.ctx))
        mr.rereg(e.IBV_REREG_MR_CHANGE_TRANSLATION, addr=where, length=8192)
        self.assertEqual(mr.length, 8192)
        mr.rereg(e.IBV_REREG_MR_CHANGE_PD, pd=pd)
        mr.write(b"moved", 5, 8000)
        self.assertEqual(mem_alloc.read(where + 8000, 5), b"moved")
        mr.close()

    def test_change_of_nothing_is_refused(self):
        mr = self.own(MR(self.pd, 4096, LOCAL))
        for flags, more in ((0, {}), (1 << 5, {}), (e.IBV_REREG_MR_CHANGE_TRANSLATION, {}),
                            (e.IBV_REREG_MR_CHANGE_ACCESS, {"access": e.IBV_ACCESS_REMOTE_WRITE})):
            with self.assertRaises(PyverbsRDMAError):
                mr.rereg(flags, **more)
        mr.write(b"whole", 5)
        self.assertEqual(mr.read(5, 0), b"whole")

    def test_many_regions_come_and_go(self):
        for _ in range(3):
            regions = [MR(self.pd, 5000, REMOTE) for _ in range(100)]
            self.assertEqual(len({mr.rkey for mr in regions}), 100)
            for mr in regions:
                mr.close()


class WindowTest(Case):
    def bind(self, side, window, offset, length, access, flags=SIGNALED, wr_id=5):
        info = MWBindInfo(side.mr, side.mr.buf + offset, length, access)
        side.qp.bind_mw(window, MWBind(info, flags, wr_id))

    def sides(self):
        return self.pair(access=REMOTE | e.IBV_ACCESS_MW_BIND)

    def test_window_is_allocated(self):
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.assertEqual(window.type, e.IBV_MW_TYPE_1)

    def test_unknown_type_is_refused(self):
        self.refuses(errno.EINVAL, MW, self.pd, 3)

    def test_peer_writes_through_a_window(self):
        client, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.bind(server, window, 1000, 100, e.IBV_ACCESS_REMOTE_WRITE)
        self.check(server.sent()[0], 5, e.IBV_WC_BIND_MW)
        self.assertNotIn(window.rkey, (0, server.mr.rkey))
        client.fill(pattern(100))
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 100), to=(window.rkey, server.mr.buf + 1000))
        client.post(e.IBV_WR_RDMA_READ, client.sge(500, 100), to=server.at(1000), wr_id=2)
        for wc, wr_id in zip(client.sent(2), (1, 2)):
            self.check(wc, wr_id)
        self.assertEqual(server.mr.read(102, 999), b"\0" + pattern(100) + b"\0")
        self.assertEqual(client.mr.read(100, 500), pattern(100))

    def test_peer_reaches_nothing_beside_a_window(self):
        client, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.bind(server, window, 1000, 100, e.IBV_ACCESS_REMOTE_READ)
        self.check(server.sent()[0], 5)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 2), to=(window.rkey, server.mr.buf + 1099))
        self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)

    def test_window_without_the_right_to_write_refuses(self):
        client, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.bind(server, window, 0, 100, e.IBV_ACCESS_REMOTE_READ)
        server.fill(pattern(100, 4))
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 100), to=(window.rkey, server.mr.buf))
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.assertEqual(client.mr.read(100, 0), pattern(100, 4))
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(200, 8), to=(window.rkey, server.mr.buf),
                    wr_id=2)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=server.at(), wr_id=3)
        self.assertIn(e.IBV_WC_REM_ACCESS_ERR, [wc.status for wc in client.sent(2)])
        self.assertEqual(server.mr.read(100, 0), pattern(100, 4))

    def test_unsignaled_bind_has_no_completion(self):
        _, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.bind(server, window, 0, 100, e.IBV_ACCESS_REMOTE_READ, flags=0)
        self.silent(server.scq)
        self.assertNotEqual(window.rkey, 0)

    def test_each_bind_has_another_key(self):
        client, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.bind(server, window, 0, 100, e.IBV_ACCESS_REMOTE_READ)
        first = window.rkey
        self.bind(server, window, 200, 100, e.IBV_ACCESS_REMOTE_READ)
        self.assertNotEqual(window.rkey, first)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=(first, server.mr.buf))
        self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)

    def test_window_of_no_length_shows_nothing(self):
        client, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.bind(server, window, 0, 100, e.IBV_ACCESS_REMOTE_READ)
        rkey = window.rkey
        self.bind(server, window, 0, 0, 0, wr_id=6)
        self.check(server.sent(2)[1], 6, e.IBV_WC_BIND_MW)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=(rkey, server.mr.buf))
        self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)

    def test_region_with_a_window_stays(self):
        _, server = self.sides()
        window = MW(self.pd, e.IBV_MW_TYPE_1)
        self.bind(server, window, 0, 100, e.IBV_ACCESS_REMOTE_READ)
        self.refuses(errno.EBUSY, server.mr.close)
        self.assertEqual(server.mr.read(4, 0), bytes(4))
        window.close()
        server.mr.close()

    def test_bind_beyond_the_region_is_refused(self):
        _, server = self.sides()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.refuses(errno.EINVAL, self.bind, server, window, SIZE - 10, 11,
                     e.IBV_ACCESS_REMOTE_READ)
        self.silent(server.scq)

    def test_window_gives_no_right_that_its_region_lacks(self):
        _, server = self.pair(access=e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_MW_BIND)
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.refuses(errno.EACCES, self.bind, server, window, 0, 100, e.IBV_ACCESS_REMOTE_WRITE)

    def test_bind_of_a_region_without_the_right_is_refused(self):
        _, server = self.pair()
        window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.refuses(errno.EINVAL, self.bind, server, window, 0, 100, e.IBV_ACCESS_REMOTE_READ)

    # The library binds a window of type 1 by a queue pair in any state, so no test asks for EINVAL
    # in RESET or for a flushed completion in ERR.


class Type2WindowTest(Case):
    """Windows that a work request binds, to the queue pair that it is posted on."""

    def setUp(self):
        super().setUp()
        self.window = self.own(MW(self.pd, e.IBV_MW_TYPE_2))
        self.listening = self.listen()

    def sides(self, **more):
        both = [Side(self, self.pd, access=REMOTE | e.IBV_ACCESS_MW_BIND, **more) for _ in range(2)]
        # A region with a bound window cannot be closed, so the window has to go first.
        self.addCleanup(self.window.close)
        return self.join(*both, self.listening)

    def bind(self, side, access=e.IBV_ACCESS_REMOTE_WRITE, offset=1000, length=100, wr_id=5):
        """Posts a bind. Returns the key, which is one more than that of the bind before."""
        wr = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=[], send_flags=SIGNALED)
        key = inc_rkey(self.window.rkey)
        wr.set_bind_wr(self.window, MWBindInfo(side.mr, side.mr.buf + offset, length, access))
        side.qp.post_send(wr)
        self.assertEqual(self.window.rkey, key)
        return key

    def bound(self, side, **more):
        """Binds, and waits until it is done."""
        key = self.bind(side, **more)
        self.check(side.sent()[0], 5, e.IBV_WC_BIND_MW)
        return key

    def unbind(self, side, key, wr_id=6):
        side.qp.post_send(SendWR(wr_id=wr_id, opcode=e.IBV_WR_LOCAL_INV, num_sge=0, sg=[],
                                 send_flags=SIGNALED,
                                 imm_data=key))
        return side.sent()[0]

    def write(self, client, server, key, offset=1000):
        """Writes through the window and waits until the server has it. Returns the completion of
        the first that fails, or of the last."""
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 8), to=(key, server.mr.buf + offset))
        client.post(e.IBV_WR_RDMA_READ, client.sge(500, 8), to=server.at(offset), wr_id=2)
        wcs = client.sent(2)
        return next((wc for wc in wcs if wc.status != e.IBV_WC_SUCCESS), wcs[1])

    def refused(self, client, server, key):
        self.assertEqual(self.write(client, server, key).status, e.IBV_WC_REM_ACCESS_ERR)

    def test_device_says_that_it_has_them(self):
        self.assertTrue(self.ctx.query_device().device_cap_flags & e.IBV_DEVICE_MEM_WINDOW_TYPE_2B)

    def test_peer_writes_through_a_window_that_a_request_bound(self):
        client, server = self.sides()
        key = self.bound(server)
        client.fill(pattern(8))
        self.check(self.write(client, server, key), 2)
        self.assertEqual(server.mr.read(10, 999), b"\0" + pattern(8) + b"\0")

    def test_peer_reaches_nothing_beside_it(self):
        client, server = self.sides()
        key = self.bound(server, length=7)
        self.refused(client, server, key)
        self.assertEqual(server.mr.read(8, 1000), bytes(8))

    def test_peer_of_another_queue_pair_is_refused(self):
        client, server = self.sides()
        other, beside = self.sides()
        key = self.bound(server)
        # The region is reached under the address of the window, whoever asks.
        other.post(e.IBV_WR_RDMA_WRITE, other.sge(0, 8), to=(key, server.mr.buf + 1000))
        other.post(e.IBV_WR_RDMA_READ, other.sge(500, 8), to=beside.at(), wr_id=2)
        self.assertIn(e.IBV_WC_REM_ACCESS_ERR, [wc.status for wc in other.sent(2)])
        self.check(self.write(client, server, key), 2)

    def test_another_queue_pair_binds_it_once_it_is_invalidated(self):
        client, server = self.sides()
        other, beside = self.sides()
        key = self.bound(server)
        self.check(self.unbind(server, key), 6, e.IBV_WC_LOCAL_INV)
        key = self.bound(beside)
        self.check(self.write(other, beside, key), 2)
        self.refused(client, server, key)

    def test_another_queue_pair_cannot_bind_it_while_it_is_bound(self):
        client, server = self.sides()
        _, beside = self.sides()
        key = self.bound(server)
        self.bind(beside)
        self.check(beside.sent()[0], 5, e.IBV_WC_BIND_MW, status=e.IBV_WC_MW_BIND_ERR)
        self.check(self.write(client, server, key), 2)

    def test_bind_of_a_bound_window_is_refused(self):
        _, server = self.sides()
        self.bound(server)
        self.bind(server)
        self.check(server.sent()[0], 5, e.IBV_WC_BIND_MW, status=e.IBV_WC_MW_BIND_ERR)

    def test_old_key_is_of_no_use_after_the_next_bind(self):
        client, server = self.sides()
        first = self.bound(server)
        self.check(self.unbind(server, first), 6)
        second = self.bound(server)
        self.check(self.write(client, server, second), 2)
        self.refused(client, server, first)

    def test_peer_invalidates_it(self):
        client, server = self.sides()
        key = self.bound(server)
        server.recv(3)
        client.qp.post_send(SendWR(wr_id=1, opcode=e.IBV_WR_SEND_WITH_INV, num_sge=1,
                                   sg=[client.sge(0, 8)],
                                   send_flags=SIGNALED, imm_data=key))
        self.check(client.sent()[0], 1)
        wc = server.received()[0]
        self.check(wc, 3, e.IBV_WC_RECV)
        self.assertTrue(wc.wc_flags & e.IBV_WC_WITH_INV)
        self.bound(server)
        self.refused(client, server, key)

    def test_bind_is_done_before_the_message_behind_it_is_sent(self):
        operations = e.IBV_QP_EX_WITH_BIND_MW | e.IBV_QP_EX_WITH_SEND
        client, server = self.sides(operations=operations)
        client.recv(3)
        key, qp = inc_rkey(self.window.rkey), server.qp
        qp.wr_start()
        qp.wr_id, qp.wr_flags = 5, SIGNALED
        qp.wr_bind_mw(self.window, key,
                      MWBindInfo(server.mr, server.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE))
        qp.wr_id, qp.wr_flags = 6, SIGNALED
        qp.wr_send()
        qp.wr_set_sge(server.sge(0, 4))
        qp.wr_complete()
        self.check(client.received()[0], 3, e.IBV_WC_RECV, 4)
        self.check(self.write(client, server, key, offset=0), 2)
        self.assertEqual([wc.wr_id for wc in server.sent(2)], [5, 6])

    def test_region_with_a_bound_window_stays(self):
        _, server = self.sides()
        key = self.bound(server)
        self.refuses(errno.EBUSY, server.mr.close)
        self.check(self.unbind(server, key), 6)
        server.mr.close()

    def test_window_goes_with_its_queue_pair(self):
        _, server = self.sides()
        self.bound(server)
        server.qp.close()
        server.mr.close()

    def test_closed_window_is_of_no_use(self):
        client, server = self.sides()
        key = self.bound(server)
        self.window.close()
        self.refused(client, server, key)

    def test_rights_are_those_of_the_bind(self):
        client, server = self.sides()
        key = self.bound(server, access=e.IBV_ACCESS_REMOTE_READ)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=(key, server.mr.buf + 1000))
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.refused(client, server, key)

    def test_region_without_the_right_cannot_be_bound(self):
        _, server = self.join(*(Side(self, self.pd) for _ in range(2)), self.listening)
        self.bind(server)
        self.check(server.sent()[0], 5, e.IBV_WC_BIND_MW, status=e.IBV_WC_MW_BIND_ERR)

    def test_bind_beyond_the_region_fails(self):
        _, server = self.sides()
        self.bind(server, offset=SIZE - 10, length=11)
        self.check(server.sent()[0], 5, e.IBV_WC_BIND_MW, status=e.IBV_WC_MW_BIND_ERR)

    def test_each_type_has_its_own_way_to_be_bound(self):
        _, server = self.sides()
        info = MWBindInfo(server.mr, server.mr.buf, 100, e.IBV_ACCESS_REMOTE_READ)
        self.refuses(errno.EINVAL, server.qp.bind_mw, self.window, MWBind(info, SIGNALED, 5))
        self.window = self.own(MW(self.pd, e.IBV_MW_TYPE_1))
        self.refuses(errno.EINVAL, self.bind, server)
        self.silent(server.scq)

    def test_key_of_another_window_is_refused(self):
        _, server = self.sides(operations=e.IBV_QP_EX_WITH_BIND_MW)
        other, qp = self.own(MW(self.pd, e.IBV_MW_TYPE_2)), server.qp
        qp.wr_start()
        qp.wr_id, qp.wr_flags = 5, SIGNALED
        qp.wr_bind_mw(self.window, inc_rkey(other.rkey), MWBindInfo(server.mr, server.mr.buf, 8,
                                                                    e.IBV_ACCESS_REMOTE_READ))
        self.refuses(errno.EINVAL, qp.wr_complete)
        self.silent(server.scq)
    # The library has no windows of type 2, so no test binds one by a work request. And the library
    # binds a window of type 1 by a queue pair in any state, so no test asks for EINVAL in RESET or
    # for a flushed completion in ERR.


class CqTest(Case):
    def test_queue_has_at_least_the_depth_asked_for(self):
        for depth in (1, 2, 100, 1000):
            self.assertGreaterEqual(self.own(CQ(self.ctx, depth)).cqe, depth)

    def test_depths_out_of_range_are_refused(self):
        most = self.ctx.query_device().max_cqe
        for depth in (0, -1, most + 1):
            self.refuses(errno.EINVAL, CQ, self.ctx, depth)

    def test_vector_beyond_the_last_is_refused(self):
        self.refuses(errno.EINVAL, CQ, self.ctx, 8, None, None, 1)

    def test_empty_queue_has_no_completion(self):
        self.assertEqual(self.own(CQ(self.ctx, 8)).poll(4), (0, []))

    def test_resize_keeps_completions(self):
        client, server = self.pair()
        for i in range(5):
            server.recv(i, server.sge(i * 10, 10))
        for i in range(5):
            client.post(e.IBV_WR_SEND, client.sge(0, i + 1), wr_id=i)
        client.sent(5)
        server.rcq.resize(500)
        self.assertGreaterEqual(server.rcq.cqe, 500)
        for i, wc in enumerate(server.received(5)):
            self.check(wc, i, e.IBV_WC_RECV, i + 1)
        server.recv(9)
        client.post(e.IBV_WR_SEND, client.sge(0, 3))
        self.check(server.received()[0], 9, e.IBV_WC_RECV, 3)

    def test_resize_to_fewer(self):
        rcq = self.own(CQ(self.ctx, 1000))
        rcq.resize(8)
        self.assertLess(rcq.cqe, 1000)
        client, server = self.pair(server={"rcq": rcq})
        for i in range(30):
            server.recv(i, server.sge(0, 16))
            client.post(e.IBV_WR_SEND, client.sge(0, 16), wr_id=i)
            client.sent()
            self.check(server.received()[0], i, e.IBV_WC_RECV, 16)

    # No test resizes a queue twice. The library refuses the second time (EBUSY) until the worker
    # writes to the first room, and for as long as the program has not polled what lies elsewhere.
    # Where the library does not refuse, the program may poll completions that no worker wrote: its
    # end looks for them in the second room, while the worker still writes to the first one.

    def test_resize_to_nothing_is_refused(self):
        cq = self.own(CQ(self.ctx, 8))
        for depth in (0, -5, self.ctx.query_device().max_cqe + 1):
            self.refuses(errno.EINVAL, cq.resize, depth)
        self.assertGreaterEqual(cq.cqe, 8)

    def test_poll_takes_no_more_than_asked_for(self):
        client, server = self.pair()
        for i in range(6):
            server.recv(i, server.sge(0, 16))
            client.post(e.IBV_WR_SEND, client.sge(0, 16), wr_id=i, flags=0)
        found = []
        while len(found) < 6:
            count, some = server.rcq.poll(4)
            self.assertLessEqual(count, 4)
            self.assertEqual(count, len(some))
            found += [wc.wr_id for wc in some]
        self.assertEqual(found, list(range(6)))

    def test_event_comes_for_a_completion(self):
        channel = self.own(CompChannel(self.ctx))
        rcq = self.own(CQ(self.ctx, 16, None, channel, 0))
        client, server = self.pair(server={"rcq": rcq})
        for i in range(3):
            server.recv(i)
            rcq.req_notify()
            client.post(e.IBV_WR_SEND, client.sge(0, 4))
            channel.get_cq_event(rcq)
            self.check(server.received()[0], i, e.IBV_WC_RECV, 4)
        rcq.ack_events(3)

    def test_poll_that_leaves_completions_behind_an_arm_brings_an_event(self):
        channel = self.own(CompChannel(self.ctx))
        rcq = self.own(CQ(self.ctx, 16, None, channel, 0))
        client, server = self.pair(server={"rcq": rcq})
        for i in range(3):
            server.recv(i)
            client.post(e.IBV_WR_SEND, client.sge(0, 4))
            client.sent()
        time.sleep(0.02)
        rcq.req_notify()
        self.assertEqual([wc.wr_id for wc in rcq.poll(1)[1]], [0])
        channel.get_cq_event(rcq)
        rcq.ack_events(1)
        self.assertEqual([wc.wr_id for wc in rcq.poll(8)[1]], [1, 2])

    def test_solicited_event_alone_wakes(self):
        channel = self.own(CompChannel(self.ctx))
        rcq = self.own(CQ(self.ctx, 16, None, channel, 0))
        client, server = self.pair(server={"rcq": rcq})
        for i in range(3):
            server.recv(i)
        rcq.req_notify(solicited_only=True)
        for i in range(3):
            client.post(e.IBV_WR_SEND, client.sge(0, 4), flags=e.IBV_SEND_SOLICITED if i == 2
                        else 0)
        channel.get_cq_event(rcq)
        # The event of either unsolicited message would have come before the third one was there.
        self.assertEqual([wc.wr_id for wc in rcq.poll(8)[1]], [0, 1, 2])
        rcq.ack_events(1)

    def test_queues_share_a_channel(self):
        channel = self.own(CompChannel(self.ctx))
        scq, rcq = (self.own(CQ(self.ctx, 16, None, channel, 0)) for _ in range(2))
        client, server = self.pair(client={"scq": scq}, server={"rcq": rcq})
        scq.req_notify()
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 4), to=server.at())
        channel.get_cq_event(scq)
        scq.ack_events(1)
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_WRITE)
        server.recv()
        rcq.req_notify()
        client.post(e.IBV_WR_SEND, client.sge(0, 4), flags=0)
        channel.get_cq_event(rcq)
        rcq.ack_events(1)
        self.check(server.received()[0], 1, e.IBV_WC_RECV)

    def test_queue_in_use_stays(self):
        channel, cmid = self.resolve()
        cq = self.own(CQ(self.ctx, 8))
        # The context of an id is another one than the test's, and its queue pair is made there.
        cq = CQ(cmid.context, 8)
        cmid.create_qp(QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
        self.refuses(errno.EBUSY, cq.close)
        cmid.close()
        channel.close()

    def test_failure_is_a_solicited_event(self):
        channel = self.own(CompChannel(self.ctx))
        rcq = self.own(CQ(self.ctx, 16, None, channel, 0))
        client, server = self.pair(server={"rcq": rcq})
        server.recv(3)
        rcq.req_notify(solicited_only=True)
        client.cmid.disconnect()
        channel.get_cq_event(rcq)
        rcq.ack_events(1)
        self.check(server.received()[0], 3, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_arming_for_any_event_replaces_the_solicited_one(self):
        channel = self.own(CompChannel(self.ctx))
        rcq = self.own(CQ(self.ctx, 16, None, channel, 0))
        client, server = self.pair(server={"rcq": rcq})
        server.recv(3)
        rcq.req_notify(solicited_only=True)
        rcq.req_notify()
        client.post(e.IBV_WR_SEND, client.sge(0, 4))
        channel.get_cq_event(rcq)
        rcq.ack_events(1)
        self.check(server.received()[0], 3, e.IBV_WC_RECV, 4)

    def test_queue_that_overflows_ends_its_queue_pair(self):
        scq = self.own(CQ(self.ctx, 4))
        client, server = self.pair(client={"scq": scq})
        with contextlib.suppress(PyverbsRDMAError):
            for i in range(scq.cqe + 16):
                client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 8), to=server.at(), wr_id=i)
        self.next_event(e.IBV_EVENT_CQ_ERR)
        for i, wc in enumerate(self.completions(scq, scq.cqe)):
            self.check(wc, i, e.IBV_WC_RDMA_WRITE)
        for side in (client, server):
            self.expect(side.channel, ce.RDMA_CM_EVENT_DISCONNECTED)

    def test_one_queue_serves_both_directions(self):
        cq = self.own(CQ(self.ctx, 32))
        client, server = self.pair(client={"scq": cq, "rcq": cq})
        client.recv(7)
        server.recv(8)
        client.post(e.IBV_WR_SEND, client.sge(0, 4), wr_id=1)
        self.check(server.received()[0], 8)
        server.post(e.IBV_WR_SEND, server.sge(0, 4), wr_id=2)
        self.assertEqual({wc.wr_id: wc.opcode for wc in self.completions(cq, 2)},
                         {1: e.IBV_WC_SEND, 7: e.IBV_WC_RECV})


class CqExTest(Case):
    FIELDS = (e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_IMM | e.IBV_WC_EX_WITH_QP_NUM
              | e.IBV_WC_EX_WITH_SRC_QP
              | e.IBV_WC_EX_WITH_SLID | e.IBV_WC_EX_WITH_SL | e.IBV_WC_EX_WITH_DLID_PATH_BITS)

    def extended(self, fields=FIELDS, **more):
        return self.own(CQEX(self.ctx, CqInitAttrEx(cqe=32, wc_flags=fields, **more)))

    def start(self, cq):
        """Waits until a poll begins."""
        self.until(lambda: cq.start_poll(PollCqAttr()) == 0, "completion")

    def test_empty_queue_has_no_completion(self):
        self.assertEqual(self.extended().start_poll(None), errno.ENOENT)

    def test_unknown_poll_attribute_is_refused(self):
        attr = PollCqAttr()
        attr.comp_mask = 1
        self.assertEqual(self.extended().start_poll(attr), errno.EINVAL)

    def test_fields_of_completions(self):
        rcq, scq = self.extended(), self.extended()
        client, server = self.pair(client={"scq": scq}, server={"rcq": rcq})
        for i in range(3):
            server.recv(10 + i, server.sge(100 * i, 100))
        for i in range(3):
            client.post(e.IBV_WR_SEND, client.sge(0, 20 + i), wr_id=i)
        self.start(rcq)
        for i in range(3):
            if i:
                self.until(lambda: rcq.poll_next() == 0, "completion")
            self.assertEqual((rcq.wr_id, rcq.status), (10 + i, e.IBV_WC_SUCCESS))
            self.assertEqual((rcq.read_opcode(), rcq.read_byte_len()), (e.IBV_WC_RECV, 20 + i))
            self.assertEqual((rcq.read_qp_num(), rcq.read_wc_flags(), rcq.read_vendor_err()),
                             (server.qp.qp_num, 0, 0))
            self.assertEqual((rcq.read_src_qp(), rcq.read_slid(), rcq.read_sl(),
                              rcq.read_dlid_path_bits()),
                             (0, 0, 0, 0))
        self.assertEqual(rcq.poll_next(), errno.ENOENT)
        rcq.end_poll()
        self.start(scq)
        self.assertEqual((scq.wr_id, scq.read_opcode(), scq.read_qp_num()),
                         (0, e.IBV_WC_SEND, client.qp.qp_num))
        scq.end_poll()

    def test_immediate_data_is_read(self):
        rcq = self.extended()
        client, server = self.pair(server={"rcq": rcq})
        server.recv(3)
        client.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, client.sge(0, 50), to=server.at(),
                    imm=socket.htonl(0x12345678))
        self.start(rcq)
        self.assertEqual((rcq.wr_id, rcq.read_opcode()), (3, e.IBV_WC_RECV_RDMA_WITH_IMM))
        self.assertEqual(rcq.read_wc_flags(), e.IBV_WC_WITH_IMM)
        self.assertEqual(rcq.read_imm_data(), socket.htonl(0x12345678))
        rcq.end_poll()

    def test_status_of_an_error_is_read(self):
        scq = self.extended()
        client, server = self.pair(client={"scq": scq})
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8),
                    to=(server.mr.rkey ^ 0x5500, server.mr.buf), wr_id=4)
        self.start(scq)
        self.assertEqual((scq.wr_id, scq.status), (4, e.IBV_WC_REM_ACCESS_ERR))
        scq.end_poll()

    def test_times_of_completions_go_forward(self):
        fields = (self.FIELDS | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
                  | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        scq = self.extended(fields)
        client, server = self.pair(client={"scq": scq})
        before, wall, times = self.ctx.query_rt_values_ex()[1], time.time_ns(), []
        for i in range(3):
            client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 8), to=server.at(), wr_id=i)
            self.start(scq)
            times.append((scq.read_timestamp(), scq.read_completion_wallclock_ns()))
            scq.end_poll()
        after = self.ctx.query_rt_values_ex()[1]
        ticks = [before, *(t for t, _ in times), after]
        self.assertEqual(ticks, sorted(ticks))
        walls = [wall, *(w for _, w in times), time.time_ns()]
        self.assertEqual(walls, sorted(walls))

    def test_fields_that_iwarp_lacks_are_refused(self):
        for field in (e.IBV_WC_EX_WITH_CVLAN, e.IBV_WC_EX_WITH_FLOW_TAG, e.IBV_WC_EX_WITH_TM_INFO):
            self.refuses(errno.EOPNOTSUPP, CQEX, self.ctx, CqInitAttrEx(cqe=8, wc_flags=field))

    def test_flags_are_judged(self):
        mask = e.IBV_CQ_INIT_ATTR_MASK_FLAGS
        self.extended(comp_mask=mask, flags=e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
        self.refuses(errno.EOPNOTSUPP, CQEX, self.ctx,
                     CqInitAttrEx(comp_mask=mask, flags=e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN))
        self.refuses(errno.EINVAL, CQEX, self.ctx, CqInitAttrEx(comp_mask=mask, flags=1 << 20))
        self.refuses(errno.EOPNOTSUPP, CQEX, self.ctx, CqInitAttrEx(comp_mask=1 << 20))

    def test_depths_out_of_range_are_refused(self):
        for depth in (0, self.ctx.query_device().max_cqe + 1):
            self.refuses(errno.EINVAL, CQEX, self.ctx, CqInitAttrEx(cqe=depth))

    def test_flushed_completions_are_polled(self):
        rcq = self.extended()
        client, server = self.pair(server={"rcq": rcq})
        for i in range(3):
            server.recv(i)
        client.cmid.disconnect()
        self.expect(server.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        for i in range(3):
            self.start(rcq)
            self.assertEqual((rcq.wr_id, rcq.status), (i, e.IBV_WC_WR_FLUSH_ERR))
            rcq.end_poll()
        self.expect(client.channel, ce.RDMA_CM_EVENT_DISCONNECTED)


class SrqTest(Case):
    def shared(self, depth=16, sges=2):
        return self.own(SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=depth, max_sge=sges))))

    def test_queue_says_its_size(self):
        attr = self.shared(50, 3).query()
        self.assertGreaterEqual(attr.max_wr, 50)
        self.assertGreaterEqual(attr.max_sge, 3)
        self.assertEqual(attr.srq_limit, 0)

    def test_sizes_out_of_range_are_refused(self):
        most = self.ctx.query_device()
        for depth, sges in ((0, 1), (most.max_srq_wr + 1, 1), (8, most.max_srq_sge + 1)):
            with self.subTest(depth=depth, sges=sges):
                self.refuses(errno.EINVAL, SRQ, self.pd,
                             SrqInitAttr(SrqAttr(max_wr=depth, max_sge=sges)))

    def test_extended_queue_has_a_number(self):
        attr = SrqInitAttrEx(max_wr=8)
        attr.srq_type, attr.pd = e.IBV_SRQT_BASIC, self.pd
        attr.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD
        first, second = (self.own(SRQ(self.ctx, attr)) for _ in range(2))
        self.assertNotEqual(first.get_srq_num(), second.get_srq_num())

    def test_limit_is_set_and_read(self):
        srq = self.shared(16)
        mr = self.own(MR(self.pd, 64, LOCAL))
        # A queue with fewer receives than its limit reports that at once and is armed no more.
        for i in range(8):
            srq.post_recv(RecvWR(i, 1, [SGE(mr.buf, 64, mr.lkey)]))
        srq.modify(SrqAttr(srq_limit=5), e.IBV_SRQ_LIMIT)
        self.assertEqual(srq.query().srq_limit, 5)
        srq.modify(SrqAttr(srq_limit=0), e.IBV_SRQ_LIMIT)
        self.assertEqual(srq.query().srq_limit, 0)

    def test_limit_beyond_the_queue_is_refused(self):
        srq = self.shared(16)
        self.refuses(errno.EINVAL, srq.modify, SrqAttr(srq_limit=1000), e.IBV_SRQ_LIMIT)
        self.refuses(errno.EINVAL, srq.modify, SrqAttr(), 1 << 7)
        self.refuses(errno.EOPNOTSUPP, srq.modify, SrqAttr(max_wr=32), e.IBV_SRQ_MAX_WR)

    def test_full_queue_is_refused(self):
        srq = self.shared(4, 1)
        mr = self.own(MR(self.pd, 64, LOCAL))
        depth = srq.query().max_wr
        for i in range(depth):
            srq.post_recv(RecvWR(i, 1, [SGE(mr.buf, 64, mr.lkey)]))
        self.refuses(errno.ENOMEM, srq.post_recv, RecvWR(depth, 1, [SGE(mr.buf, 64, mr.lkey)]))

    def test_too_many_pieces_are_refused(self):
        srq = self.shared(4, 2)
        mr = self.own(MR(self.pd, 64, LOCAL))
        sges = [SGE(mr.buf + 8 * i, 8, mr.lkey) for i in range(3)]
        bad = RecvWR(0, 1, sges[:1])
        with self.assertRaises(PyverbsRDMAError):
            srq.post_recv(RecvWR(77, 3, sges), bad)
        self.assertEqual(bad.wr_id, 77)

    def test_queue_pairs_share_receives(self):
        srq = self.shared()
        listening = self.listen()
        rcq = self.own(CQ(self.ctx, 32))
        pairs = [self.join(Side(self, self.pd), Side(self, self.pd, srq=srq, rcq=rcq), listening)
                 for _ in range(2)]
        mr = self.own(MR(self.pd, 1600, LOCAL))
        for i in range(8):
            srq.post_recv(RecvWR(i, 1, [SGE(mr.buf + 200 * i, 200, mr.lkey)]))
        numbers = {}
        for i in range(8):
            client, server = pairs[i % 2]
            client.fill(pattern(100 + i, i))
            client.post(e.IBV_WR_SEND, client.sge(0, 100 + i))
            client.sent()
            (wc,) = self.completions(rcq)
            self.check(wc, wc.wr_id, e.IBV_WC_RECV, 100 + i)
            self.assertEqual(wc.qp_num, server.qp.qp_num)
            self.assertEqual(mr.read(100 + i, 200 * wc.wr_id), pattern(100 + i, i))
            numbers[wc.wr_id] = i
        self.assertEqual(sorted(numbers), list(range(8)))

    def test_limit_event_comes_once(self):
        srq = self.shared()
        client, server = self.pair(server={"srq": srq})
        for i in range(4):
            server.recv(i)
        srq.modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)
        for _ in range(2):
            client.post(e.IBV_WR_SEND, client.sge(0, 4))
            client.sent()
        self.next_event(e.IBV_EVENT_SRQ_LIMIT_REACHED)
        self.assertEqual(srq.query().srq_limit, 0)
        server.received(2)

    def test_last_wqe_is_reported(self):
        srq = self.shared()
        client, server = self.pair(server={"srq": srq})
        server.recv()
        client.cmid.disconnect()
        self.expect(server.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        self.expect(client.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        self.next_event(e.IBV_EVENT_QP_LAST_WQE_REACHED)
        # The receive is the shared queue's and no queue pair's, so nothing flushes it.
        self.silent(server.rcq)

    def test_queue_pair_has_no_receives_of_its_own(self):
        srq = self.shared()
        side = Side(self, self.pd, srq=srq)
        attr = QPAttr()
        attr.qp_state = e.IBV_QPS_INIT
        side.qp.modify(attr, e.IBV_QP_STATE)
        with self.assertRaises(PyverbsRDMAError):
            side.qp.post_recv(RecvWR(1, 1, [side.sge()]))


class QpTest(Case):
    def move(self, side, state, mask=e.IBV_QP_STATE):
        attr = QPAttr()
        attr.qp_state = state
        side.qp.modify(attr, mask)

    def test_connection_takes_queue_pairs_out_of_reset(self):
        client, server = Side(self, self.pd), Side(self, self.pd)
        server.channel, listener = self.listen()
        client.channel, client.cmid = self.resolve()
        with self.assertRaises(PyverbsRDMAError):
            client.qp.post_recv(RecvWR(num_sge=1, sg=[client.sge(0, 8)]))
        client.cmid.connect(self.param(client))
        server.cmid, _ = self.request(server.channel, listener)
        server.cmid.accept(self.param(server))
        for side in (client, server):
            self.expect(side.channel, ce.RDMA_CM_EVENT_ESTABLISHED)
            self.assertEqual(side.state(), e.IBV_QPS_RTS)
        server.qp.post_recv(RecvWR(wr_id=7, num_sge=1, sg=[server.sge(0, 8)]))
        client.post(e.IBV_WR_SEND, client.sge(0, 8))
        self.check(server.received()[0], 7, e.IBV_WC_RECV, 8)
        self.check(client.sent()[0], 1, e.IBV_WC_SEND)
        self.move(client, e.IBV_QPS_RESET)
        with self.assertRaises(PyverbsRDMAError):
            client.post(e.IBV_WR_SEND, client.sge(0, 8))

    def test_new_queue_pair_is_reset(self):
        first, second = Side(self, self.pd), Side(self, self.pd)
        self.assertEqual((first.qp.qp_state, first.state()), (e.IBV_QPS_RESET, e.IBV_QPS_RESET))
        self.assertEqual(first.qp.qp_type, e.IBV_QPT_RC)
        self.assertNotEqual(first.qp.qp_num, second.qp.qp_num)
        self.assertIn("RESET", str(first.qp).upper())

    def test_query_says_what_it_was_made_with(self):
        side = Side(self, self.pd, sig_all=1, cap=QPCap(10, 20, 3, 2, 100))
        attr, init = side.qp.query(e.IBV_QP_CAP | e.IBV_QP_STATE)
        for cap in (attr.cap, init.cap):
            self.assertGreaterEqual(cap.max_send_wr, 10)
            self.assertGreaterEqual(cap.max_recv_wr, 20)
            self.assertGreaterEqual(cap.max_send_sge, 3)
            self.assertGreaterEqual(cap.max_recv_sge, 2)
            self.assertGreaterEqual(cap.max_inline_data, 100)
        self.assertEqual((init.qp_type, init.sq_sig_all), (e.IBV_QPT_RC, 1))

    def test_creation_says_what_was_given(self):
        cq = self.own(CQ(self.ctx, 8))
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(3, 5, 1, 1, 0))
        self.own(QP(self.pd, init))
        self.assertGreaterEqual(init.cap.max_send_wr, 3)
        self.assertGreaterEqual(init.cap.max_recv_wr, 5)

    def test_sizes_out_of_range_are_refused(self):
        most = self.ctx.query_device()
        cq = self.own(CQ(self.ctx, 8))
        for cap in (QPCap(max_send_wr=most.max_qp_wr + 1), QPCap(max_recv_wr=most.max_qp_wr + 1),
                    QPCap(max_send_sge=most.max_sge + 1), QPCap(max_recv_sge=most.max_sge + 1),
                    QPCap(max_inline_data=1 << 20)):
            self.refuses(errno.EINVAL, QP, self.pd,
                         QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))

    def test_queue_pair_without_completion_queues_is_refused(self):
        self.refuses(errno.EINVAL, QP, self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap()))

    def test_states_that_a_program_may_ask_for(self):
        side = Side(self, self.pd)
        for state in (e.IBV_QPS_INIT, e.IBV_QPS_INIT, e.IBV_QPS_ERR, e.IBV_QPS_RESET,
                      e.IBV_QPS_INIT, e.IBV_QPS_RESET):
            self.move(side, state)
            self.assertEqual((side.qp.qp_state, side.state()), (state, state))

    def test_states_that_only_a_connection_brings_are_refused(self):
        side = Side(self, self.pd)
        for state in (e.IBV_QPS_RTS, e.IBV_QPS_SQD, e.IBV_QPS_SQE):
            self.refuses(errno.EINVAL, self.move, side, state)
        self.assertEqual(side.state(), e.IBV_QPS_RESET)

    def test_current_state_is_compared(self):
        side = Side(self, self.pd)
        attr = QPAttr()
        attr.qp_state, attr.cur_qp_state = e.IBV_QPS_INIT, e.IBV_QPS_RTS
        self.refuses(errno.EINVAL, side.qp.modify, attr, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
        attr.cur_qp_state = e.IBV_QPS_RESET
        side.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
        self.assertEqual(side.state(), e.IBV_QPS_INIT)

    def test_attributes_that_no_rnic_changes_are_refused(self):
        side = Side(self, self.pd)
        self.refuses(errno.EOPNOTSUPP, side.qp.modify, QPAttr(), e.IBV_QP_CAP)
        self.refuses(errno.EOPNOTSUPP, side.qp.modify, QPAttr(), e.IBV_QP_RATE_LIMIT)
        self.refuses(errno.EINVAL, side.qp.modify, QPAttr(), 1 << 28)

    def test_posts_in_reset_are_refused(self):
        side = Side(self, self.pd)
        self.refuses(errno.EINVAL, side.recv)
        self.refuses(errno.EINVAL, side.post)

    def test_receives_are_posted_before_the_connection(self):
        client, server = Side(self, self.pd), Side(self, self.pd)
        self.move(server, e.IBV_QPS_INIT)
        server.recv(42)
        self.join(client, server)
        client.fill(b"early")
        client.post(e.IBV_WR_SEND, client.sge(0, 5))
        self.check(server.received()[0], 42, e.IBV_WC_RECV, 5)
        self.assertEqual(server.mr.read(5, 0), b"early")

    def test_full_receive_queue_is_refused(self):
        side = Side(self, self.pd, cap=QPCap(max_recv_wr=4))
        self.move(side, e.IBV_QPS_INIT)
        depth = side.qp.query(e.IBV_QP_CAP)[0].cap.max_recv_wr
        with self.assertRaises(PyverbsRDMAError) as caught:
            for i in range(4 * depth + 64):
                side.recv(i)
        self.assertEqual(caught.exception.error_code, errno.ENOMEM)

    def test_too_many_pieces_are_refused(self):
        client, server = self.pair()
        with self.assertRaises(PyverbsRDMAError):
            server.recv(1, *[server.sge(i, 1) for i in range(17)])
        with self.assertRaises(PyverbsRDMAError):
            client.post(e.IBV_WR_SEND, *[client.sge(i, 1) for i in range(17)])
        self.silent(client.scq, server.rcq)

    def test_error_flushes_receives(self):
        side = Side(self, self.pd)
        self.move(side, e.IBV_QPS_INIT)
        for i in range(3):
            side.recv(i)
        self.move(side, e.IBV_QPS_ERR)
        for i, wc in enumerate(side.received(3)):
            self.check(wc, i, status=e.IBV_WC_WR_FLUSH_ERR)
            self.assertEqual(wc.qp_num, side.qp.qp_num)

    def test_posts_in_error_are_flushed(self):
        side = Side(self, self.pd)
        self.move(side, e.IBV_QPS_INIT)
        self.move(side, e.IBV_QPS_ERR)
        side.recv(3)
        self.check(side.received()[0], 3, status=e.IBV_WC_WR_FLUSH_ERR)
        side.post(wr_id=4)
        self.check(side.sent()[0], 4, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_reset_forgets_receives(self):
        side = Side(self, self.pd)
        self.move(side, e.IBV_QPS_INIT)
        side.recv(3)
        self.move(side, e.IBV_QPS_RESET)
        self.silent(side.rcq)

    def test_reset_queue_pair_is_used_again(self):
        listening = self.listen()
        client, server = self.join(Side(self, self.pd), Side(self, self.pd), listening)
        for i in range(3):
            client.cmid.disconnect()
            for side in (client, server):
                self.expect(side.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
            for side in (server, client):
                self.move(side, e.IBV_QPS_RESET)
                self.assertEqual(side.state(), e.IBV_QPS_RESET)
                side.cmid.close()
            self.join(client, server, listening)
            server.recv(i)
            client.post(e.IBV_WR_SEND, client.sge(0, 6), wr_id=i)
            self.check(client.sent()[0], i, e.IBV_WC_SEND)
            self.check(server.received()[0], i, e.IBV_WC_RECV, 6)

    def test_connection_brings_the_state(self):
        client, server = self.pair()
        for side in (client, server):
            self.assertEqual(side.state(), e.IBV_QPS_RTS)
        self.move(client, e.IBV_QPS_ERR)
        self.assertEqual(client.state(), e.IBV_QPS_ERR)
        self.expect(server.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        self.until(lambda: server.state() == e.IBV_QPS_ERR, "state ERR")

    def test_order_of_data_is_not_promised(self):
        side = Side(self, self.pd)
        self.assertEqual(side.qp.query_data_in_order(e.IBV_WR_RDMA_WRITE), 0)

    def test_many_queue_pairs(self):
        cq = self.own(CQ(self.ctx, 64))
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap())
        made = [QP(self.pd, init) for _ in range(50)]
        self.assertEqual(len({qp.qp_num for qp in made}), 50)
        for qp in made:
            qp.close()


class TrafficTest(Case):
    def test_sends_of_many_lengths(self):
        client, server = self.pair()
        for length in (0, 1, 7, 1000, 1448, 4096, 4097, SIZE):
            client.fill(pattern(length, length % 97))
            server.fill(bytes(SIZE))
            server.recv(length + 1)
            client.post(e.IBV_WR_SEND, client.sge(0, length), wr_id=length)
            self.check(client.sent()[0], length, e.IBV_WC_SEND)
            self.check(server.received()[0], length + 1, e.IBV_WC_RECV, length)
            self.assertEqual(server.mr.read(length, 0), pattern(length, length % 97))
            if length < SIZE:
                self.assertEqual(server.mr.read(1, length), b"\0")

    def test_sends_go_both_ways(self):
        client, server = self.pair()
        for side in (client, server):
            for i in range(10):
                side.recv(i, side.sge(8000 + 100 * i, 100))
        for i in range(10):
            for n, side in enumerate((client, server)):
                side.fill(pattern(100, n * 20 + i), 100 * i)
                side.post(e.IBV_WR_SEND, side.sge(100 * i, 100), wr_id=i)
        for n, side in enumerate((client, server)):
            for i, wc in enumerate(side.received(10)):
                self.check(wc, i, e.IBV_WC_RECV, 100)
                self.assertEqual(side.mr.read(100, 8000 + 100 * i), pattern(100, (1 - n) * 20 + i))
            self.assertEqual([wc.wr_id for wc in side.sent(10)], list(range(10)))

    def test_pieces_are_gathered_and_scattered(self):
        client, server = self.pair()
        data = pattern(600, 5)
        client.fill(data[:100])
        client.fill(data[100:350], 5000)
        client.fill(data[350:], 9999)
        server.recv(1, server.sge(10, 1), server.sge(200, 400), server.sge(3000, 300))
        client.post(e.IBV_WR_SEND, client.sge(0, 100), client.sge(5000, 250), client.sge(9999, 250))
        self.check(client.sent()[0], 1)
        self.check(server.received()[0], 1, e.IBV_WC_RECV, 600)
        self.assertEqual(server.mr.read(1, 10) + server.mr.read(400, 200)
                         + server.mr.read(199, 3000), data)

    def test_inline_data_needs_no_region(self):
        client, server = self.pair()
        where = mem_alloc.malloc(64)
        self.addCleanup(mem_alloc.free, where)
        for flags in (SIGNALED | INLINE, SIGNALED | INLINE | e.IBV_SEND_SOLICITED):
            mem_alloc.write(where, pattern(64, flags), 64)
            server.recv()
            client.post(e.IBV_WR_SEND, SGE(where, 40, 0), SGE(where + 40, 24, 0xBAD), flags=flags)
            # The library has copied the data when the post returns.
            mem_alloc.write(where, bytes(64), 64)
            self.check(server.received()[0], 1, e.IBV_WC_RECV, 64)
            self.assertEqual(server.mr.read(64, 0), pattern(64, flags))
            self.check(client.sent()[0], 1)
        mem_alloc.write(where, pattern(32, 9), 32)
        client.post(e.IBV_WR_RDMA_WRITE, SGE(where, 32, 0), flags=SIGNALED | INLINE,
                    to=server.at(700))
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_WRITE)
        self.until(lambda: server.mr.read(32, 700) == pattern(32, 9), "data")

    def test_too_much_inline_data_is_refused(self):
        client, _ = self.pair()
        most = client.qp.query(e.IBV_QP_CAP)[0].cap.max_inline_data
        self.refuses(errno.EINVAL, client.post, e.IBV_WR_SEND, client.sge(0, most + 1),
                     flags=INLINE)

    def test_unsignaled_requests_have_no_completion(self):
        client, server = self.pair()
        for i in range(4):
            server.recv(i, server.sge(0, 64))
        for i in range(4):
            client.post(e.IBV_WR_SEND, client.sge(0, 64), wr_id=i, flags=SIGNALED if i == 3 else 0)
        self.check(client.sent()[0], 3)
        server.received(4)
        self.silent(client.scq)

    def test_queue_pair_that_signals_all(self):
        client, server = self.pair(client={"sig_all": 1})
        for i in range(3):
            client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 64), to=server.at(), wr_id=i, flags=0)
        self.assertEqual([wc.wr_id for wc in client.sent(3)], [0, 1, 2])

    def test_queue_is_used_many_times_over(self):
        client, server = self.pair(cap=QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1,
                                             max_recv_sge=1))
        for i in range(200):
            server.recv(i, server.sge(0, 8))
            client.fill(i.to_bytes(8, "little"))
            client.post(e.IBV_WR_SEND, client.sge(0, 8), wr_id=i)
            self.check(client.sent()[0], i)
            self.check(server.received()[0], i, e.IBV_WC_RECV, 8)
            self.assertEqual(int.from_bytes(server.mr.read(8, 0), "little"), i)

    def test_send_with_immediate_is_refused(self):
        # RFC 7306 has immediate data as a message of its own, not in a Send.
        client, _ = self.pair()
        self.refuses(errno.EOPNOTSUPP, client.post, e.IBV_WR_SEND_WITH_IMM, client.sge(0, 8), imm=1)

    def test_unknown_opcode_is_refused(self):
        client, _ = self.pair()
        self.refuses(errno.EOPNOTSUPP, client.post, 99, client.sge(0, 8))

    def test_write_with_immediate_takes_a_receive(self):
        client, server = self.pair()
        for i, value in enumerate((0, 1, 0xFFFFFFFF, 0xA1B2C3D4)):
            server.recv(i)
            client.fill(pattern(300, i))
            client.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, client.sge(0, 300), to=server.at(600),
                        imm=socket.htonl(value))
            (wc,) = server.received()
            self.check(wc, i, e.IBV_WC_RECV_RDMA_WITH_IMM)
            self.assertEqual((wc.wc_flags, wc.imm_data), (e.IBV_WC_WITH_IMM, socket.htonl(value)))
            self.assertEqual(server.mr.read(300, 600), pattern(300, i))
            self.check(client.sent()[0], 1, e.IBV_WC_RDMA_WRITE)

    # The receive of immediate data has a byte_len of 0: over iWARP that is a message of its own
    # beside the Write (RFC 7306), so no test asks for the length of the data.

    def test_write_with_immediate_and_no_data(self):
        client, server = self.pair()
        server.recv(6)
        client.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, client.sge(0, 0), to=server.at(), imm=5)
        (wc,) = server.received()
        self.check(wc, 6, e.IBV_WC_RECV_RDMA_WITH_IMM, 0)
        self.assertEqual(wc.imm_data, 5)

    def test_writes_of_many_lengths(self):
        client, server = self.pair()
        for length in (1, 8, 1449, 4096, 10001):
            client.fill(pattern(length, length % 50))
            server.fill(bytes(SIZE))
            client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, length), to=server.at(123), wr_id=length)
            self.check(client.sent()[0], length, e.IBV_WC_RDMA_WRITE)
            self.until(lambda n=length: server.mr.read(n, 123) == pattern(n, n % 50), "data")
            self.assertEqual(server.mr.read(1, 122) + server.mr.read(1, 123 + length), b"\0\0")
        self.silent(server.rcq)

    def test_write_gathers_pieces(self):
        client, server = self.pair()
        client.fill(pattern(900, 8))
        pieces = [client.sge(600, 300), client.sge(0, 300), client.sge(300, 300)]
        client.post(e.IBV_WR_RDMA_WRITE, *pieces, to=server.at(50))
        self.check(client.sent()[0], 1)
        data = pattern(900, 8)
        self.until(lambda: server.mr.read(900, 50) == data[600:] + data[:600], "data")

    def test_data_of_a_write_is_there_before_a_later_send(self):
        client, server = self.pair()
        for i in range(20):
            server.recv(i, server.sge(0, 8))
            client.fill(pattern(2000, i), 100)
            client.post(e.IBV_WR_RDMA_WRITE, client.sge(100, 2000), to=server.at(5000), flags=0)
            client.post(e.IBV_WR_SEND, client.sge(0, 8))
            self.check(server.received()[0], i, e.IBV_WC_RECV, 8)
            self.assertEqual(server.mr.read(2000, 5000), pattern(2000, i))
            client.sent()

    def test_reads_of_many_lengths(self):
        client, server = self.pair()
        for length in (1, 8, 1449, 4096, 10001):
            server.fill(pattern(length, length % 40), 77)
            client.fill(bytes(SIZE))
            client.post(e.IBV_WR_RDMA_READ, client.sge(33, length), to=server.at(77), wr_id=length)
            self.check(client.sent()[0], length, e.IBV_WC_RDMA_READ)
            self.assertEqual(client.mr.read(length, 33), pattern(length, length % 40))
            self.assertEqual(client.mr.read(1, 32) + client.mr.read(1, 33 + length), b"\0\0")

    def test_more_reads_than_are_outstanding_at_a_time(self):
        client, server = self.pair()
        server.fill(pattern(3000))
        for i in range(30):
            client.post(e.IBV_WR_RDMA_READ, client.sge(100 * i, 100), to=server.at(100 * i),
                        wr_id=i)
        self.assertEqual([(wc.wr_id, wc.status) for wc in client.sent(30)],
                         [(i, 0) for i in range(30)])
        self.assertEqual(client.mr.read(3000, 0), pattern(3000))

    def test_server_reads_and_writes_too(self):
        client, server = self.pair()
        client.fill(b"client's")
        server.post(e.IBV_WR_RDMA_READ, server.sge(0, 8), to=client.at())
        self.check(server.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.assertEqual(server.mr.read(8, 0), b"client's")
        server.post(e.IBV_WR_RDMA_WRITE, server.sge(0, 8), to=client.at(100))
        self.check(server.sent()[0], 1, e.IBV_WC_RDMA_WRITE)
        self.until(lambda: client.mr.read(8, 100) == b"client's", "data")

    def test_fetch_and_add(self):
        client, server = self.pair()
        server.fill((2 ** 64 - 2).to_bytes(8, sys.byteorder), 64)
        seen = []
        for i, add in enumerate((1, 5, 2 ** 40)):
            client.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, client.sge(8 * i, 8), to=server.at(64),
                        atomic=(add,), wr_id=i)
            self.check(client.sent()[0], i, e.IBV_WC_FETCH_ADD)
            seen.append(int.from_bytes(client.mr.read(8, 8 * i), sys.byteorder))
        self.assertEqual(seen, [2 ** 64 - 2, 2 ** 64 - 1, 4])
        self.assertEqual(int.from_bytes(server.mr.read(8, 64), sys.byteorder), 4 + 2 ** 40)

    def test_compare_and_swap(self):
        client, server = self.pair()
        server.fill((100).to_bytes(8, sys.byteorder))
        for compare, swap, before, after in ((99, 1, 100, 100), (100, 2 ** 63, 100, 2 ** 63),
                                             (2 ** 63, 7, 2 ** 63, 7)):
            client.post(e.IBV_WR_ATOMIC_CMP_AND_SWP, client.sge(0, 8), to=server.at(),
                        atomic=(compare, swap))
            self.check(client.sent()[0], 1)
            self.assertEqual(int.from_bytes(client.mr.read(8, 0), sys.byteorder), before)
            self.assertEqual(int.from_bytes(server.mr.read(8, 0), sys.byteorder), after)

    # The library calls a compare-and-swap a fetch-and-add (IBV_WC_FETCH_ADD) in its completion, so
    # no test asks for IBV_WC_COMP_SWAP.

    def test_fenced_write_waits_for_the_read(self):
        client, server = self.pair()
        server.fill(pattern(5000, 1))
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 5000), to=server.at(), wr_id=1)
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 5000), to=server.at(8000), wr_id=2,
                    flags=SIGNALED | e.IBV_SEND_FENCE)
        self.assertEqual([wc.wr_id for wc in client.sent(2)], [1, 2])
        self.until(lambda: server.mr.read(5000, 8000) == pattern(5000, 1), "data")

    def test_list_of_requests(self):
        client, server = self.pair()
        receives = [RecvWR(i, 1, [server.sge(100 * i, 100)]) for i in range(3)]
        for first, second in zip(receives, receives[1:]):
            first.next_wr = second
        server.qp.post_recv(receives[0])
        sends = [client.request(e.IBV_WR_SEND, client.sge(10 * i, 10), wr_id=i) for i in range(3)]
        client.fill(pattern(30))
        for first, second in zip(sends, sends[1:]):
            first.next_wr = second
        client.qp.post_send(sends[0])
        self.assertEqual([wc.wr_id for wc in client.sent(3)], [0, 1, 2])
        for i, wc in enumerate(server.received(3)):
            self.check(wc, i, e.IBV_WC_RECV, 10)
            self.assertEqual(server.mr.read(10, 100 * i), pattern(30)[10 * i:10 * i + 10])

    def test_list_of_different_requests(self):
        client, server = self.pair()
        server.recv(1, server.sge(0, 16))
        client.fill(pattern(200, 6))
        wrs = [client.request(e.IBV_WR_RDMA_WRITE, client.sge(0, 200), to=server.at(1000), wr_id=1),
               client.request(e.IBV_WR_RDMA_READ, client.sge(500, 200), to=server.at(1000),
                              wr_id=2),
               client.request(e.IBV_WR_ATOMIC_FETCH_AND_ADD, client.sge(800, 8), to=server.at(2000),
                              atomic=(3,),
                              wr_id=3),
               client.request(e.IBV_WR_SEND, client.sge(0, 16), wr_id=4)]
        for first, second in zip(wrs, wrs[1:]):
            first.next_wr = second
        client.qp.post_send(wrs[0])
        self.assertEqual([(wc.wr_id, wc.status) for wc in client.sent(4)],
                         [(i, 0) for i in (1, 2, 3, 4)])
        self.check(server.received()[0], 1, e.IBV_WC_RECV, 16)
        self.assertEqual(client.mr.read(200, 500), pattern(200, 6))
        self.assertEqual(int.from_bytes(server.mr.read(8, 2000), sys.byteorder), 3)

    def test_list_stops_at_its_bad_request(self):
        client, server = self.pair()
        for i in range(3):
            server.recv(i, server.sge(0, 8))
        wrs = [client.request(e.IBV_WR_SEND, client.sge(0, 8), wr_id=10),
               client.request(e.IBV_WR_SEND_WITH_IMM, client.sge(0, 8), wr_id=11),
               client.request(e.IBV_WR_SEND, client.sge(0, 8), wr_id=12)]
        wrs[0].next_wr, wrs[1].next_wr = wrs[1], wrs[2]
        bad = client.request(wr_id=0)
        self.refuses(errno.EOPNOTSUPP, client.qp.post_send, wrs[0], bad)
        self.assertEqual(bad.wr_id, 11)
        self.check(client.sent()[0], 10)
        self.check(server.received()[0], 0)
        self.silent(client.scq, server.rcq)

    def test_full_send_queue_is_refused(self):
        client, server = self.pair(client={"cap": QPCap(max_send_wr=4, max_send_sge=1)})
        # The worker frees a place when a request is done, so a list is refused only where it
        # outruns the worker.
        for _ in range(100):
            wrs = [client.request(e.IBV_WR_RDMA_READ, client.sge(), to=server.at(), wr_id=i)
                   for i in range(40)]
            for first, second in zip(wrs, wrs[1:]):
                first.next_wr = second
            bad = client.request(wr_id=40)
            try:
                client.qp.post_send(wrs[0], bad)
            except PyverbsRDMAError as error:
                self.assertEqual(error.error_code, errno.ENOMEM)
                self.assertGreaterEqual(bad.wr_id, 4)
            self.assertEqual([(wc.wr_id, wc.status) for wc in client.sent(bad.wr_id)],
                             [(i, e.IBV_WC_SUCCESS) for i in range(bad.wr_id)])
            if bad.wr_id < 40:
                return
        self.fail("no list of ten times the queue's depth was refused")

    def test_pieces_up_to_the_limit(self):
        most = self.ctx.query_device().max_sge
        client, server = self.pair(cap=QPCap(4, 4, most, most, 0))
        client.fill(pattern(10 * most))
        server.recv(1, *[server.sge(20 * i, 10) for i in range(most)])
        client.post(e.IBV_WR_SEND, *[client.sge(10 * i, 10) for i in range(most)])
        self.check(server.received()[0], 1, e.IBV_WC_RECV, 10 * most)
        self.assertEqual(b"".join(server.mr.read(10, 20 * i) for i in range(most)),
                         pattern(10 * most))

    def test_read_into_two_pieces_is_refused(self):
        # The Read Request of iWARP names one sink, and the device says so (max_sge_rd).
        client, server = self.pair()
        self.refuses(errno.EINVAL, client.post, e.IBV_WR_RDMA_READ, client.sge(0, 8),
                     client.sge(8, 8), to=server.at())

    def test_writes_and_reads_of_nothing_need_no_keys(self):
        client, _ = self.pair()
        for i, opcode in enumerate((e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ)):
            client.post(opcode, SGE(0, 0, 0), to=(0, 0), wr_id=i)
            self.check(client.sent()[0], i)

    def test_large_write_and_read(self):
        client, server = self.pair()
        length = 8 << 20
        near, far = (self.own(MR(self.pd, length, REMOTE)) for _ in range(2))
        data = os.urandom(length)
        near.write(data, length)
        client.post(e.IBV_WR_RDMA_WRITE, SGE(near.buf, length, near.lkey), to=(far.rkey, far.buf),
                    wr_id=1)
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_WRITE)
        near.write(bytes(length), length)
        client.post(e.IBV_WR_RDMA_READ, SGE(near.buf, length, near.lkey), to=(far.rkey, far.buf),
                    wr_id=2)
        self.check(client.sent()[0], 2, e.IBV_WC_RDMA_READ)
        self.assertEqual(near.read(length, 0), data)

    def test_zero_based_region_is_named_from_zero(self):
        client, server = self.pair(server={"access": REMOTE | e.IBV_ACCESS_ZERO_BASED})
        server.fill(pattern(100), 16)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 100), to=(server.mr.rkey, 16))
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.assertEqual(client.mr.read(100, 0), pattern(100))

    def test_queue_pair_drains_before_its_end(self):
        client, server = self.pair()
        for i in range(8):
            server.recv(i, server.sge(0, 1000))
            client.post(e.IBV_WR_SEND, client.sge(0, 1000), wr_id=i)
        attr = QPAttr()
        attr.qp_state = e.IBV_QPS_SQD
        client.qp.modify(attr, e.IBV_QP_STATE)
        self.assertEqual(client.state(), e.IBV_QPS_SQD)
        self.assertEqual([(wc.wr_id, wc.status) for wc in client.sent(8)],
                         [(i, 0) for i in range(8)])
        self.assertEqual([(wc.wr_id, wc.status) for wc in server.received(8)],
                         [(i, 0) for i in range(8)])
        attr.qp_state = e.IBV_QPS_RTS
        client.qp.modify(attr, e.IBV_QP_STATE)
        self.assertEqual(client.state(), e.IBV_QPS_RTS)

    def test_forks_while_other_threads_register(self):
        """Each thread has the memory of another page of the heap converted and given back all the
        time."""
        client, server = self.pair()
        stop, failed, rounds = threading.Event(), [], [0] * 3

        def register(number):
            length = 1 << 20 if number == 0 else 5000
            where = mem_alloc.malloc(length)
            try:
                while not stop.is_set():
                    mem_alloc.write(where, pattern(5000, number), 5000)
                    mr = MR(self.pd, length, LOCAL, address=where)
                    mem_alloc.write(where + 1, b"x", 1)
                    mr.close()
                    if mem_alloc.read(where + 2, 4998) != pattern(5000, number)[2:]:
                        failed.append("the memory differs")
                    rounds[number] += 1
            except Exception as wrong:  # noqa: BLE001 - a thread's exception is the test's
                failed.append(wrong)
            mem_alloc.free(where)

        threads = [threading.Thread(target=register, args=(n,)) for n in range(len(rounds))]
        for thread in threads:
            thread.start()
        try:
            for i in range(20):
                before = list(rounds)
                server.fill(pattern(SIZE, i))
                child = os.fork()
                if child == 0:
                    # Neither process sees what the other writes.
                    same = server.mr.read(SIZE, 0) == pattern(SIZE, i)
                    server.mr.write(b"child", 5, 0)
                    os._exit(0 if same else 1)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
                self.assertEqual(server.mr.read(SIZE, 0), pattern(SIZE, i))
                self.until(lambda b=before: failed or all(x > y for x, y in zip(rounds, b)),
                           "registration")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 100), to=server.at())
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.assertEqual(client.mr.read(100, 0), pattern(SIZE, 19)[:100])

    def test_forked_child_leaves_the_parent_alone(self):
        client, server = self.pair()
        server.recv()
        child = os.fork()
        if child == 0:
            os._exit(7)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        client.fill(b"after the fork")
        client.post(e.IBV_WR_SEND, client.sge(0, 14))
        self.check(server.received()[0], 1, e.IBV_WC_RECV, 14)
        self.assertEqual(server.mr.read(14, 0), b"after the fork")


class ErrorTest(Case):
    def ended(self, client, server):
        """Checks that both ends report the end of the connection."""
        for side in (client, server):
            self.expect(side.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
            self.until(lambda s=side: s.state() == e.IBV_QPS_ERR, "state ERR")

    def test_read_with_a_wrong_key(self):
        client, server = self.pair()
        client.recv(8)
        server.recv(9)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8),
                    to=(server.mr.rkey ^ 0x5500, server.mr.buf), wr_id=1)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=server.at(), wr_id=2)
        first, second = client.sent(2)
        self.check(first, 1, status=e.IBV_WC_REM_ACCESS_ERR)
        self.check(second, 2, status=e.IBV_WC_WR_FLUSH_ERR)
        self.check(client.received()[0], 8, status=e.IBV_WC_WR_FLUSH_ERR)
        self.check(server.received()[0], 9, status=e.IBV_WC_WR_FLUSH_ERR)
        self.ended(client, server)

    def test_write_with_a_wrong_key(self):
        client, server = self.pair()
        server.recv(9)
        client.post(e.IBV_WR_RDMA_WRITE, client.sge(0, 8),
                    to=(server.mr.rkey ^ 0x5500, server.mr.buf), wr_id=1)
        # A Write over iWARP completes when the bytes are sent, so its own completion may say
        # success; a read after it cannot.
        with contextlib.suppress(PyverbsRDMAError):
            client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=server.at(), wr_id=2)
        first, second = client.sent(2)
        self.assertEqual((first.wr_id, second.wr_id), (1, 2))
        self.assertIn(first.status, (e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR))
        self.assertIn(second.status, (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_WR_FLUSH_ERR))
        self.assertIn(e.IBV_WC_REM_ACCESS_ERR, (first.status, second.status))
        self.check(server.received()[0], 9, status=e.IBV_WC_WR_FLUSH_ERR)
        self.ended(client, server)

    def test_access_that_was_not_granted(self):
        for opcode, access in ((e.IBV_WR_RDMA_READ, LOCAL | e.IBV_ACCESS_REMOTE_WRITE),
                               (e.IBV_WR_ATOMIC_FETCH_AND_ADD, LOCAL | e.IBV_ACCESS_REMOTE_READ)):
            with self.subTest(opcode=opcode):
                listening = self.listen()
                client = Side(self, self.pd)
                client, server = self.join(client, Side(self, self.pd, access=access), listening)
                atomic = (1,) if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD else None
                client.post(opcode, client.sge(0, 8), to=server.at(), atomic=atomic)
                self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)
                self.ended(client, server)
                listening[1].close()

    def test_read_beyond_the_region(self):
        client, server = self.pair()
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 9), to=server.at(SIZE - 8))
        self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)
        self.ended(client, server)

    def test_region_of_another_domain_is_out_of_reach(self):
        client, server = self.pair()
        foreign = self.own(MR(self.own(PD(self.ctx)), 4096, REMOTE))
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=(foreign.rkey, foreign.buf))
        self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)
        self.ended(client, server)

    def test_atomic_operation_off_alignment(self):
        client, server = self.pair()
        client.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, client.sge(0, 8), to=server.at(4), atomic=(1,))
        self.assertNotEqual(client.sent()[0].status, e.IBV_WC_SUCCESS)
        self.assertEqual(server.mr.read(16, 0), bytes(16))
        self.ended(client, server)

    def test_region_that_was_closed_is_out_of_reach(self):
        client, server = self.pair()
        gone = MR(self.pd, 4096, REMOTE)
        to = gone.rkey, gone.buf
        gone.close()
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=to)
        self.check(client.sent()[0], 1, status=e.IBV_WC_REM_ACCESS_ERR)
        self.ended(client, server)

    def test_send_from_a_wrong_key(self):
        client, server = self.pair()
        client.post(e.IBV_WR_SEND, SGE(client.mr.buf, 8, client.mr.lkey ^ 0x5500))
        self.check(client.sent()[0], 1, status=e.IBV_WC_LOC_PROT_ERR)
        self.ended(client, server)

    def test_send_from_beyond_the_region(self):
        client, server = self.pair()
        client.post(e.IBV_WR_SEND, client.sge(SIZE - 4, 8))
        self.check(client.sent()[0], 1, status=e.IBV_WC_LOC_PROT_ERR)
        self.ended(client, server)

    def test_read_into_memory_that_may_not_be_written(self):
        client, server = self.pair(client={"access": e.IBV_ACCESS_REMOTE_READ})
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=server.at())
        self.assertEqual(client.sent()[0].status, e.IBV_WC_LOC_PROT_ERR)
        self.ended(client, server)

    def test_receive_that_is_too_short(self):
        client, server = self.pair()
        server.recv(3, server.sge(0, 10))
        server.recv(4)
        client.post(e.IBV_WR_SEND, client.sge(0, 11))
        first, second = server.received(2)
        self.check(first, 3, status=e.IBV_WC_LOC_LEN_ERR)
        self.check(second, 4, status=e.IBV_WC_WR_FLUSH_ERR)
        self.assertEqual(server.mr.read(11, 0), bytes(11))
        self.ended(client, server)

    def test_receive_into_a_wrong_key(self):
        client, server = self.pair()
        server.recv(3, SGE(server.mr.buf, 100, server.mr.lkey ^ 0x5500))
        client.post(e.IBV_WR_SEND, client.sge(0, 11))
        self.check(server.received()[0], 3, status=e.IBV_WC_LOC_PROT_ERR)
        self.ended(client, server)

    def test_key_that_no_peer_may_invalidate(self):
        client, server = self.pair()
        server.recv(3)
        client.qp.post_send(SendWR(wr_id=1, opcode=e.IBV_WR_SEND_WITH_INV, num_sge=1,
                                   sg=[client.sge(0, 8)],
                                   imm_data=server.mr.rkey))
        self.assertNotEqual(server.received()[0].status, e.IBV_WC_SUCCESS)
        self.assertNotEqual(client.sent()[0].status, e.IBV_WC_SUCCESS)
        self.ended(client, server)

    def test_region_is_not_invalidated_by_a_request(self):
        client, server = self.pair()
        client.qp.post_send(SendWR(wr_id=1, opcode=e.IBV_WR_LOCAL_INV, num_sge=0, sg=[],
                                   imm_data=client.mr.lkey))
        self.check(client.sent()[0], 1, e.IBV_WC_LOCAL_INV, status=e.IBV_WC_MW_BIND_ERR)
        self.ended(client, server)

    def test_read_where_none_was_agreed_on(self):
        channel, listener = self.listen()
        client, server = Side(self, self.pd), Side(self, self.pd)
        client.channel, client.cmid = self.resolve()
        server.channel = channel
        self.to_init(client)
        client.cmid.connect(ConnParam(resources=0, depth=0, qp_num=client.qp.qp_num))
        server.cmid, _ = self.request(channel, listener)
        self.to_init(server)
        server.cmid.accept(ConnParam(resources=0, depth=0, qp_num=server.qp.qp_num))
        for side in (client, server):
            self.expect(side.channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        client.post(e.IBV_WR_RDMA_READ, client.sge(0, 8), to=server.at())
        self.check(client.sent()[0], 1, status=e.IBV_WC_LOC_QP_OP_ERR)
        self.ended(client, server)

    def test_events_go_to_the_context_of_their_object(self):
        mine, other = self.ctx, self.own(Context(name=NAME))
        pd = self.own(PD(other))
        self.ctx = other
        client = Side(self, pd)
        self.ctx = mine
        client, server = self.join(client, Side(self, self.pd))
        client.post(e.IBV_WR_SEND, SGE(client.mr.buf, 8, client.mr.lkey ^ 0x5500))
        self.check(client.sent()[0], 1, status=e.IBV_WC_LOC_PROT_ERR)
        self.ended(client, server)
        for self.ctx in (other, mine):
            self.next_event(e.IBV_EVENT_QP_FATAL)

    def test_send_without_a_receive(self):
        client, server = self.pair()
        client.post(e.IBV_WR_SEND, client.sge(0, 8))
        self.assertIn(client.sent()[0].status, (e.IBV_WC_SUCCESS, e.IBV_WC_REM_OP_ERR))
        self.ended(client, server)

    def test_fatal_error_is_an_asynchronous_event(self):
        client, server = self.pair()
        client.post(e.IBV_WR_SEND, SGE(client.mr.buf, 8, client.mr.lkey ^ 0x5500))
        self.check(client.sent()[0], 1, status=e.IBV_WC_LOC_PROT_ERR)
        self.next_event(e.IBV_EVENT_QP_FATAL)
        self.ended(client, server)

    def test_disconnect_flushes_both_ends(self):
        client, server = self.pair()
        for side in (client, server):
            for i in range(3):
                side.recv(i)
        server.cmid.disconnect()
        self.ended(client, server)
        for side in (client, server):
            self.assertEqual([(wc.wr_id, wc.status) for wc in side.received(3)],
                             [(i, e.IBV_WC_WR_FLUSH_ERR) for i in range(3)])

    def test_posts_after_the_end_are_flushed(self):
        client, server = self.pair()
        server.cmid.disconnect()
        self.ended(client, server)
        for side in (client, server):
            side.recv(5)
            side.post(wr_id=6)
            side.post(e.IBV_WR_RDMA_READ, to=(1, 1), wr_id=7)
            self.check(side.received()[0], 5, status=e.IBV_WC_WR_FLUSH_ERR)
            for wc, wr_id in zip(side.sent(2), (6, 7)):
                self.check(wc, wr_id, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_flushed_post_wakes_who_waits(self):
        channel = self.own(CompChannel(self.ctx))
        rcq = self.own(CQ(self.ctx, 16, None, channel, 0))
        client, server = self.pair(server={"rcq": rcq})
        client.cmid.disconnect()
        self.ended(client, server)
        rcq.req_notify()
        server.recv(5)
        channel.get_cq_event(rcq)
        rcq.ack_events(1)
        self.check(server.received()[0], 5, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_destroyed_queue_pair_ends_the_connection(self):
        client, server = self.pair()
        server.recv(4)
        client.qp.close()
        self.expect(server.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        self.check(server.received()[0], 4, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_destroyed_id_ends_the_connection(self):
        client, server = self.pair()
        server.recv(4)
        client.cmid.close()
        self.expect(server.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        self.check(server.received()[0], 4, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_data_sent_before_the_end_arrives(self):
        client, server = self.pair()
        for i in range(10):
            server.recv(i, server.sge(1000 * i, 1000))
        client.fill(pattern(1000))
        for i in range(10):
            client.post(e.IBV_WR_SEND, client.sge(0, 1000), wr_id=i)
        client.sent(10)
        client.cmid.disconnect()
        for i, wc in enumerate(server.received(10)):
            self.check(wc, i, e.IBV_WC_RECV, 1000)
            self.assertEqual(server.mr.read(1000, 1000 * i), pattern(1000))
        self.ended(client, server)

    def test_error_of_one_connection_leaves_others_alone(self):
        listening = self.listen()
        first = self.join(Side(self, self.pd), Side(self, self.pd), listening)
        second = self.join(Side(self, self.pd), Side(self, self.pd), listening)
        first[0].post(e.IBV_WR_RDMA_READ, first[0].sge(0, 8), to=(1, 1))
        self.assertNotEqual(first[0].sent()[0].status, e.IBV_WC_SUCCESS)
        self.ended(*first)
        client, server = second
        server.recv(1)
        client.post(e.IBV_WR_SEND, client.sge(0, 8))
        self.check(server.received()[0], 1, e.IBV_WC_RECV, 8)


class ExtendedQpTest(Case):
    def sides(self, **more):
        client, server = self.pair(client={"operations": OPERATIONS}, **more)
        return client, server, client.qp

    @contextlib.contextmanager
    def batch(self, qp):
        qp.wr_start()
        yield
        qp.wr_complete()

    def begin(self, qp, wr_id, flags=SIGNALED):
        qp.wr_id, qp.wr_flags = wr_id, flags

    def test_send(self):
        client, server, qp = self.sides()
        server.recv(2)
        client.fill(pattern(500))
        with self.batch(qp):
            self.begin(qp, 7)
            qp.wr_send()
            qp.wr_set_sge(client.sge(0, 500))
        self.check(client.sent()[0], 7, e.IBV_WC_SEND)
        self.check(server.received()[0], 2, e.IBV_WC_RECV, 500)
        self.assertEqual(server.mr.read(500, 0), pattern(500))

    def test_send_of_a_list_of_pieces(self):
        client, server, qp = self.sides()
        server.recv(2)
        client.fill(pattern(90))
        with self.batch(qp):
            self.begin(qp, 7)
            qp.wr_send()
            qp.wr_set_sge_list(3, [client.sge(60, 30), client.sge(30, 30), client.sge(0, 30)])
        self.check(server.received()[0], 2, e.IBV_WC_RECV, 90)
        data = pattern(90)
        self.assertEqual(server.mr.read(90, 0), data[60:] + data[30:60] + data[:30])

    def test_send_of_inline_data(self):
        client, server, qp = self.sides()
        where = mem_alloc.malloc(64)
        self.addCleanup(mem_alloc.free, where)
        mem_alloc.write(where, pattern(64), 64)
        server.recv(2)
        with self.batch(qp):
            self.begin(qp, 7, SIGNALED | INLINE)
            qp.wr_send()
            qp.wr_set_inline_data(where, 64)
            mem_alloc.write(where, bytes(64), 64)
        self.check(server.received()[0], 2, e.IBV_WC_RECV, 64)
        self.assertEqual(server.mr.read(64, 0), pattern(64))

    def test_send_of_a_list_of_inline_data(self):
        client, server, qp = self.sides()
        where = mem_alloc.malloc(64)
        self.addCleanup(mem_alloc.free, where)
        mem_alloc.write(where, pattern(64), 64)
        server.recv(2)
        with self.batch(qp):
            self.begin(qp, 7, SIGNALED | INLINE)
            qp.wr_send()
            qp.wr_set_inline_data_list(2, [DataBuffer(where + 40, 24), DataBuffer(where, 40)])
        self.check(server.received()[0], 2, e.IBV_WC_RECV, 64)
        self.assertEqual(server.mr.read(64, 0), pattern(64)[40:] + pattern(64)[:40])

    def test_write_with_and_without_immediate(self):
        client, server, qp = self.sides()
        server.recv(2)
        client.fill(pattern(200))
        with self.batch(qp):
            self.begin(qp, 1)
            qp.wr_rdma_write(*server.at(1000))
            qp.wr_set_sge(client.sge(0, 100))
            self.begin(qp, 2)
            qp.wr_rdma_write_imm(*server.at(2000), socket.htonl(77))
            qp.wr_set_sge(client.sge(100, 100))
        for wc, wr_id in zip(client.sent(2), (1, 2)):
            self.check(wc, wr_id, e.IBV_WC_RDMA_WRITE)
        (wc,) = server.received()
        self.check(wc, 2, e.IBV_WC_RECV_RDMA_WITH_IMM)
        self.assertIn(wc.imm_data, (77, socket.htonl(77)))
        self.assertEqual(server.mr.read(100, 1000) + server.mr.read(100, 2000), pattern(200))

    def test_read(self):
        client, server, qp = self.sides()
        server.fill(pattern(300, 2), 40)
        with self.batch(qp):
            self.begin(qp, 1)
            qp.wr_rdma_read(*server.at(40))
            qp.wr_set_sge(client.sge(0, 300))
        self.check(client.sent()[0], 1, e.IBV_WC_RDMA_READ)
        self.assertEqual(client.mr.read(300, 0), pattern(300, 2))

    def test_atomic_operations(self):
        client, server, qp = self.sides()
        server.fill((10).to_bytes(8, sys.byteorder))
        with self.batch(qp):
            self.begin(qp, 1)
            qp.wr_atomic_fetch_add(*server.at(), 5)
            qp.wr_set_sge(client.sge(0, 8))
            self.begin(qp, 2)
            qp.wr_atomic_cmp_swp(*server.at(), 15, 99)
            qp.wr_set_sge(client.sge(8, 8))
        for wc, wr_id in zip(client.sent(2), (1, 2)):
            self.check(wc, wr_id)
        old = client.mr.read(16, 0)
        self.assertEqual([int.from_bytes(old[i:i + 8], sys.byteorder) for i in (0, 8)], [10, 15])
        self.assertEqual(int.from_bytes(server.mr.read(8, 0), sys.byteorder), 99)

    def test_many_requests_in_a_batch(self):
        client, server, qp = self.sides()
        for i in range(20):
            server.recv(i, server.sge(100 * i, 100))
        client.fill(pattern(1000))
        with self.batch(qp):
            for i in range(20):
                self.begin(qp, i)
                qp.wr_send()
                qp.wr_set_sge(client.sge(50 * i, 50))
        self.assertEqual([wc.wr_id for wc in client.sent(20)], list(range(20)))
        for i, wc in enumerate(server.received(20)):
            self.check(wc, i, e.IBV_WC_RECV, 50)
            self.assertEqual(server.mr.read(50, 100 * i), client.mr.read(50, 50 * i))

    def test_aborted_batch_sends_nothing(self):
        client, server, qp = self.sides()
        server.recv(2)
        qp.wr_start()
        self.begin(qp, 1)
        qp.wr_send()
        qp.wr_set_sge(client.sge(0, 10))
        qp.wr_abort()
        self.silent(client.scq, server.rcq)
        with self.batch(qp):
            self.begin(qp, 3)
            qp.wr_send()
            qp.wr_set_sge(client.sge(0, 20))
        self.check(client.sent()[0], 3)
        self.check(server.received()[0], 2, e.IBV_WC_RECV, 20)

    def test_batch_beyond_the_queue_is_refused(self):
        client, server, qp = self.sides()
        most = qp.query(e.IBV_QP_CAP)[0].cap.max_send_wr
        qp.wr_start()
        for i in range(most + 40):
            self.begin(qp, i)
            qp.wr_rdma_write(*server.at())
            qp.wr_set_sge(client.sge(0, 8))
        self.refuses(errno.ENOMEM, qp.wr_complete)
        self.silent(client.scq)

    def test_operation_that_was_not_asked_for_is_refused(self):
        client, _, qp = self.sides()
        qp.wr_start()
        self.begin(qp, 1)
        qp.wr_send_imm(5)
        qp.wr_set_sge(client.sge(0, 8))
        with self.assertRaises(PyverbsRDMAError):
            qp.wr_complete()
        self.silent(client.scq)

    def test_lists_work_beside_batches(self):
        client, server, _ = self.sides()
        server.recv(2)
        client.post(e.IBV_WR_SEND, client.sge(0, 10), wr_id=4)
        self.check(client.sent()[0], 4)
        self.check(server.received()[0], 2, e.IBV_WC_RECV, 10)

    def test_batch_after_the_end_is_flushed(self):
        client, server, qp = self.sides()
        server.cmid.disconnect()
        for side in (client, server):
            self.expect(side.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        with self.batch(qp):
            self.begin(qp, 8)
            qp.wr_send()
            qp.wr_set_sge(client.sge(0, 10))
        self.check(client.sent()[0], 8, status=e.IBV_WC_WR_FLUSH_ERR)

    def test_operations_that_iwarp_lacks_are_refused(self):
        for operation in (e.IBV_QP_EX_WITH_SEND_WITH_IMM, e.IBV_QP_EX_WITH_TSO,
                          e.IBV_QP_EX_WITH_ATOMIC_WRITE):
            self.refuses(errno.EOPNOTSUPP, Side, self, self.pd, operations=operation)

    def test_create_flags_are_refused(self):
        cq = self.own(CQ(self.ctx, 8))
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS
        init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(), pd=self.pd,
                            comp_mask=mask,
                            create_flags=e.IBV_QP_CREATE_SCATTER_FCS)
        self.refuses(errno.EOPNOTSUPP, QP, self.ctx, init)


class ConnectionTest(Case):
    def test_private_data_goes_both_ways(self):
        channel, listener = self.listen()
        client, server = Side(self, self.pd), Side(self, self.pd)
        client.channel, client.cmid = self.resolve()
        self.to_init(client)
        param = self.param(client, data_len=17)
        param.set_private_data(b"from the client\0\0")
        client.cmid.connect(param)
        server.cmid, data = self.request(channel, listener)
        self.assertEqual(bytes(data)[:15], b"from the client")
        self.to_init(server)
        param = self.param(server, data_len=15)
        param.set_private_data(b"from the server")
        server.cmid.accept(param)
        data = self.expect(client.channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual(bytes(data)[:15], b"from the server")
        self.expect(channel, ce.RDMA_CM_EVENT_ESTABLISHED)

    def test_rejected_connection_has_the_reason(self):
        channel, listener = self.listen()
        client = Side(self, self.pd)
        client.channel, client.cmid = self.resolve()
        self.to_init(client)
        client.cmid.connect(self.param(client))
        refused, _ = self.request(channel, listener)
        refused.reject(b"no room")
        data = self.expect(client.channel, ce.RDMA_CM_EVENT_REJECTED)
        self.assertEqual(bytes(data)[:7], b"no room")

    def test_connection_without_a_listener_is_rejected(self):
        client = Side(self, self.pd)
        client.channel, client.cmid = self.resolve()
        self.to_init(client)
        client.cmid.connect(self.param(client))
        self.expect(client.channel, ce.RDMA_CM_EVENT_REJECTED)

    def test_closed_listener_rejects(self):
        channel, listener = self.listen()
        listener.close()
        channel.close()
        self.test_connection_without_a_listener_is_rejected()

    def test_second_listener_of_a_port_is_refused(self):
        self.listen()
        other = self.own(CMID(creator=self.own(CMEventChannel())))
        self.refuses(errno.EADDRINUSE, other.bind_addr, passive())

    def test_port_is_free_after_its_listener(self):
        for _ in range(3):
            channel, listener = self.listen()
            listener.close()
            channel.close()

    def test_address_of_nobody_is_refused(self):
        other = self.own(CMID(creator=self.own(CMEventChannel())))
        with self.assertRaises(PyverbsRDMAError) as caught:
            other.bind_addr(passive("203.0.113.7"))
        self.assertIn(caught.exception.error_code, (errno.ENODEV, errno.EADDRNOTAVAIL))

    # librdmacm crashes in rdma_resolve_route on an id without a device, and pyverbs on an id that
    # is bound to 0.0.0.0, so no test does either.

    def test_connect_before_the_route_is_refused(self):
        channel = self.own(CMEventChannel())
        cmid = self.own(CMID(creator=channel))
        cmid.resolve_addr(active())
        self.expect(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        side = Side(self, self.pd)
        with self.assertRaises(PyverbsRDMAError):
            cmid.connect(self.param(side))

    def test_connect_with_an_unknown_queue_pair_is_refused(self):
        self.listen()
        _, cmid = self.resolve()
        with self.assertRaises(PyverbsRDMAError):
            cmid.connect(ConnParam(qp_num=0xABCDE))

    def test_connection_at_another_loopback_address(self):
        channel = self.own(CMEventChannel())
        listener = self.own(CMID(creator=channel))
        listener.bind_addr(passive("127.9.9.9"))
        listener.listen(1)
        client = Side(self, self.pd)
        client.channel = self.own(CMEventChannel())
        client.cmid = self.own(CMID(creator=client.channel))
        client.cmid.resolve_addr(active("127.9.9.9"))
        self.expect(client.channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        client.cmid.resolve_route()
        self.expect(client.channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        self.to_init(client)
        client.cmid.connect(self.param(client))
        self.request(channel, listener)[0].reject()
        self.expect(client.channel, ce.RDMA_CM_EVENT_REJECTED)

    def test_ids_know_their_device(self):
        _, cmid = self.resolve()
        self.assertEqual((cmid.dev_name, cmid.port_num), (NAME, 1))
        self.assertEqual(cmid.context.query_device().node_guid, self.ctx.query_device().node_guid)

    def test_attributes_for_a_state(self):
        _, cmid = self.resolve()
        attr, mask = cmid.init_qp_attr(e.IBV_QPS_INIT)
        self.assertEqual(attr.qp_state, e.IBV_QPS_INIT)
        self.assertTrue(mask & e.IBV_QP_STATE)

    def test_several_connections_of_a_listener(self):
        listening = self.listen()
        pairs = [self.join(Side(self, self.pd), Side(self, self.pd), listening) for _ in range(4)]
        for i, (client, server) in enumerate(pairs):
            server.recv(i)
            client.fill(pattern(64, i))
            client.post(e.IBV_WR_SEND, client.sge(0, 64))
        for i, (_, server) in enumerate(pairs):
            self.check(server.received()[0], i, e.IBV_WC_RECV, 64)
            self.assertEqual(server.mr.read(64, 0), pattern(64, i))

    def test_requests_wait_in_the_backlog(self):
        channel, listener = self.listen()
        clients = [Side(self, self.pd) for _ in range(3)]
        for side in clients:
            side.channel, side.cmid = self.resolve()
            self.to_init(side)
            side.cmid.connect(self.param(side))
        servers = []
        for _ in clients:
            server = Side(self, self.pd)
            server.cmid, _ = self.request(channel, listener)
            server.channel = channel
            self.to_init(server)
            servers.append(server)
        for server in servers:
            server.cmid.accept(self.param(server))
            self.expect(channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        for side in clients:
            self.expect(side.channel, ce.RDMA_CM_EVENT_ESTABLISHED)

    def test_disconnect_twice(self):
        client, server = self.pair()
        client.cmid.disconnect()
        for side in (client, server):
            self.expect(side.channel, ce.RDMA_CM_EVENT_DISCONNECTED)
            with contextlib.suppress(PyverbsRDMAError):
                side.cmid.disconnect()

    def test_queue_pairs_of_ids(self):
        channel, listener = self.listen()
        client_channel, client = self.resolve()
        cap = QPCap(max_send_wr=4, max_recv_wr=4)
        client.create_qp(QPInitAttr(qp_type=e.IBV_QPT_RC, cap=cap, sq_sig_all=1))
        client.connect(ConnParam(resources=2, depth=2))
        server, _ = self.request(channel, listener)
        server.create_qp(QPInitAttr(qp_type=e.IBV_QPT_RC, cap=cap, sq_sig_all=1))
        box, letter = server.reg_msgs(256), client.reg_msgs(256)
        server.post_recv(box)
        server.accept(ConnParam(resources=2, depth=2))
        self.expect(client_channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        self.expect(channel, ce.RDMA_CM_EVENT_ESTABLISHED)
        self.assertNotEqual(client.qpn, server.qpn)
        self.assertEqual(client.query_qp(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_RTS)
        letter.write("a letter", 8)
        client.post_send(letter)
        self.check(client.get_send_comp(), 0, e.IBV_WC_SEND)
        self.check(server.get_recv_comp(), 0, e.IBV_WC_RECV, 256)
        self.assertEqual(box.read(8, 0), b"a letter")
        shelf = server.reg_read(256)
        shelf.write("on the shelf", 12)
        client.post_read(letter, 256, shelf.buf, shelf.rkey)
        self.check(client.get_send_comp(), 0, e.IBV_WC_RDMA_READ)
        self.assertEqual(letter.read(12, 0), b"on the shelf")
        target = server.reg_write(256)
        client.post_write(letter, 256, target.buf, target.rkey)
        self.check(client.get_send_comp(), 0, e.IBV_WC_RDMA_WRITE)
        self.until(lambda: target.read(12, 0) == b"on the shelf", "data")
        client.disconnect()
        self.expect(client_channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        self.expect(channel, ce.RDMA_CM_EVENT_DISCONNECTED)
        for mr in (box, letter, shelf, target):
            mr.close()

    def test_type_of_service_is_set(self):
        _, cmid = self.resolve()
        cmid.set_option(ce.RDMA_OPTION_ID, ce.RDMA_OPTION_ID_ACK_TIMEOUT, 16, 1)


class WildcardTest(Case):
    """The calls of librdmacm that pyverbs has no names for, by ctypes."""

    def setUp(self):
        super().setUp()
        self.cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
        self.cm.rdma_create_event_channel.restype = ctypes.c_void_p
        self.channel = ctypes.c_void_p(self.cm.rdma_create_event_channel())
        self.addCleanup(self.cm.rdma_destroy_event_channel, self.channel)

    def call(self, name, *args):
        if getattr(self.cm, name)(*args) != 0:
            self.fail(f"{name}: {os.strerror(ctypes.get_errno())}")

    def listen_at(self, address):
        """Returns an id that listens at a wildcard of its own family only; tgtd has one for each
        family."""
        cmid = ctypes.c_void_p()
        self.call("rdma_create_id", self.channel, ctypes.byref(cmid), None, ce.RDMA_PS_TCP)
        self.addCleanup(self.cm.rdma_destroy_id, cmid)
        level_id, afonly, one = 0, 2, ctypes.c_int(1)
        self.call("rdma_set_option", cmid, level_id, afonly, ctypes.byref(one), ctypes.sizeof(one))
        self.call("rdma_bind_addr", cmid, address)
        self.call("rdma_listen", cmid, 4)

    def test_wildcards_of_both_families_are_listened_at(self):
        port = OPTIONS.port.to_bytes(2, "big")
        ipv4 = socket.AF_INET.to_bytes(2, sys.byteorder) + port + bytes(12)
        ipv6 = socket.AF_INET6.to_bytes(2, sys.byteorder) + port + bytes(24)
        for address in (ipv4, ipv6):
            self.listen_at(address)


class TwoProcessTest(Case):
    """The synchronous calls, with the server in a process of its own."""

    def peer(self, mode):
        """Starts the other process and waits until it listens."""
        process = subprocess.Popen([sys.executable, __file__, "--peer", mode, "--host",
                                    OPTIONS.host, "--port", str(OPTIONS.port)],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline().strip(), "listening")
        return process

    def call(self):
        """Returns a connected id of the synchronous kind."""
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4),
                          sq_sig_all=1)
        cmid = self.own(CMID(creator=active(), qp_init_attr=init))
        return cmid

    def test_echo(self):
        process = self.peer("echo")
        cmid = self.call()
        box, letter = (self.own(cmid.reg_msgs(1000)) for _ in range(2))
        cmid.post_recv(box)
        cmid.connect()
        for i in range(5):
            letter.write(pattern(1000, i), 1000)
            cmid.post_send(letter)
            self.check(cmid.get_send_comp(), 0, e.IBV_WC_SEND)
            self.check(cmid.get_recv_comp(), 0, e.IBV_WC_RECV, 1000)
            self.assertEqual(box.read(1000, 0), pattern(1000, i)[::-1])
            if i < 4:
                cmid.post_recv(box)
        # Now and then the library reports the end only after 25 s, so the watchdog alone bounds
        # this call.
        cmid.disconnect()
        self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def test_killed_peer_ends_the_connection(self):
        process = self.peer("echo")
        cmid = self.call()
        box = self.own(cmid.reg_msgs(1000))
        cmid.post_recv(box)
        cmid.connect()
        process.send_signal(signal.SIGKILL)
        self.check(cmid.get_recv_comp(), 0, status=e.IBV_WC_WR_FLUSH_ERR)
        self.assertEqual(cmid.query_qp(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR)

    def test_rejected_connect_fails(self):
        process = self.peer("reject")
        cmid = self.call()
        self.refuses(errno.ECONNREFUSED, cmid.connect)
        self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def test_connect_to_nobody_fails(self):
        cmid = self.call()
        self.refuses(errno.ECONNREFUSED, cmid.connect)


def peer(mode):
    """The server of a test in two processes: sends each message back with its bytes in reverse."""
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4), sq_sig_all=1)
    listener = CMID(creator=passive(), qp_init_attr=init)
    listener.listen()
    print("listening", flush=True)
    cmid = listener.get_request()
    if mode == "reject":
        cmid.reject()
        # The listener's end waits until the request is acknowledged, which the end of its id does.
        cmid.close()
        return 0
    box = listener.reg_msgs(1000)
    answer = listener.reg_msgs(1000)
    cmid.post_recv(box)
    cmid.accept()
    while (wc := cmid.get_recv_comp()).status == e.IBV_WC_SUCCESS:
        answer.write(box.read(wc.byte_len, 0)[::-1], wc.byte_len)
        cmid.post_recv(box)
        cmid.post_send(answer)
        if cmid.get_send_comp().status != e.IBV_WC_SUCCESS:
            return 1
    return 0 if wc.status == e.IBV_WC_WR_FLUSH_ERR else 1


def shrink():
    # Within a function, where unittest does not find it.
    class Shrinking(Case):
        """A program of its own, which loses its device: it registers a file, has a peer write it,
        and cuts the file."""

        LENGTH = 64 * mmap.PAGESIZE

        def runTest(self):
            file = os.memfd_create("shrinks")
            os.ftruncate(file, self.LENGTH)
            memory = mmap.mmap(file, self.LENGTH)
            where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            client, server = self.pair()
            mr = MR(self.pd, self.LENGTH, REMOTE, address=where)
            client.post(e.IBV_WR_RDMA_WRITE, client.sge(), to=(mr.rkey, where + self.LENGTH // 2))
            self.check(client.sent()[0], 1)
            os.ftruncate(file, 0)
            # Each lands in a page that the file has lost.
            client.post(e.IBV_WR_RDMA_WRITE, client.sge(), to=(mr.rkey, where + self.LENGTH // 2),
                        wr_id=2)
            event = None
            while not event or event.event_type != e.IBV_EVENT_DEVICE_FATAL:
                event = self.ctx.get_async_event()
                event.ack()
            # The objects of a device that has gone are closed by the end of the process.
            print("device fatal", flush=True)
            os._exit(0)

    result = Shrinking().run(unittest.TestResult())
    print(*(text for _, text in result.errors + result.failures), file=sys.stderr)
    return 0 if result.wasSuccessful() else 1


def main():
    parser = argparse.ArgumentParser(prog="pyverbs_suite.py")
    parser.add_argument("--host", default=OPTIONS.host)
    parser.add_argument("--port", type=int, default=OPTIONS.port)
    parser.add_argument("--peer", choices=["echo", "reject", "shrink"])
    mine, rest = parser.parse_known_args()
    OPTIONS.host, OPTIONS.port = mine.host, mine.port
    if mine.peer == "shrink":
        return shrink()
    if mine.peer:
        return peer(mine.peer)
    unittest.main(argv=[sys.argv[0], *rest])
    return 0


if __name__ == "__main__":
    sys.exit(main())
