//! The cost of an application's calls alone: to post a request, and to poll. The module counts the
//! Rust calls and the calls of libibverbs, which may take [`MARGIN`] instructions more.

use core::fmt;
use core::ptr::null_mut;

use heddle_dataplane::Eal;
use heddle_ibverbs::abi::{
    IBV_QP_STATE, IBV_QPS_INIT, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE,
    ibv_cq, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_send_wr_rdma, ibv_send_wr_wr, ibv_sge, ibv_wc,
};
use heddle_ibverbs::rnic;
use heddle_ibverbs::verbs::{
    ibv_alloc_pd, ibv_create_cq, ibv_create_qp, ibv_get_device_list, ibv_modify_qp, ibv_open_device,
};
use heddle_verbs::{Access, Cq, Mr, Pd, Qp, QpInit, Qpn, RecvWr, SendWr, Sge, Stag};

use crate::harness::{Harness, HarnessError, Shape, Wire};
use crate::measured;

/// The most instructions that a call of libibverbs may take above the Rust call, for each request.
pub(crate) const MARGIN: u64 = 150;

/// A call of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// The application posts a Write of 8 bytes.
    PostSend,
    /// The application posts sixteen such Writes together.
    PostSends,
    /// The application posts a receive.
    PostRecv,
    /// The application polls a completion.
    Poll,
    /// The application polls while there is no completion.
    PollEmpty,
}

impl Call {
    /// Returns the number of requests in a call.
    fn requests(self) -> usize {
        if self == Call::PostSends { LIST } else { 1 }
    }

    pub(crate) const ALL: [Call; 5] =
        [Call::PostSend, Call::PostSends, Call::PostRecv, Call::Poll, Call::PollEmpty];
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::PostSend => "post-send",
            Call::PostSends => "post-16-sends",
            Call::PostRecv => "post-recv",
            Call::Poll => "poll",
            Call::PollEmpty => "poll-empty",
        })
    }
}

/// The interface that the application calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Rust,
    Ibverbs,
}

/// Bytes of a message.
const SIZE: usize = 8;

/// Requests of a list.
const LIST: usize = 16;

const WARM: usize = 64;
const OPS: usize = 512;

/// Turns in which the posted requests complete.
const TURNS: usize = 64;

/// Counts a call `OPS` times. Returns the number of requests.
pub(crate) fn run(eal: &Eal, call: Call, by: By) -> Result<u64, HarnessError> {
    let shape = Shape { size: SIZE, depth: 16, crc: false, wire: Wire::Inside, ..Shape::default() };
    let mut harness = Harness::open(eal, shape)?;
    match by {
        By::Rust => {
            let client = Native::new(&harness)?;
            repeat(&mut harness, call, client)
        }
        By::Ibverbs => {
            let client = Foreign::new(&harness)?;
            repeat(&mut harness, call, client)
        }
    }
}

/// An application with a queue pair.
trait Client {
    fn qp(&self) -> &Qp;

    fn post_send(&mut self, to: (Stag, u64)) -> bool;

    /// Posts [`LIST`] Writes together.
    fn post_sends(&mut self, to: (Stag, u64)) -> bool;

    fn post_recv(&mut self) -> bool;

    /// Returns true if there was a completion of a request that succeeded.
    fn poll(&mut self) -> bool;
}

fn repeat(harness: &mut Harness, call: Call, mut client: impl Client) -> Result<u64, HarnessError> {
    harness.connect_with(client.qp())?;
    let to = harness.target();
    let expect = |done, what| if done { Ok(()) } else { Err(HarnessError::Stalled(what)) };
    // A responder sends nothing before its initiator has sent (RFC 5044 section 7.1.2, rule 4).
    expect(client.post_send(to), "room for a request")?;
    harness.turns(TURNS);
    expect(client.poll(), "the completion of a Write")?;
    for i in 0..WARM + OPS {
        let count = i >= WARM;
        match call {
            Call::PostSend => {
                expect(counted(count, || client.post_send(to)), "room for a request")?;
                harness.turns(TURNS);
                expect(client.poll(), "the completion of a Write")?;
            }
            Call::PostSends => {
                expect(counted(count, || client.post_sends(to)), "room for requests")?;
                harness.turns(TURNS);
                let all = (0..LIST).all(|_| client.poll());
                expect(all, "the completions of Writes")?;
            }
            Call::PostRecv => {
                expect(counted(count, || client.post_recv()), "room for a receive")?;
                harness.send_from_server()?;
                harness.turns(TURNS);
                expect(client.poll(), "the completion of a receive")?;
            }
            Call::Poll => {
                expect(client.post_send(to), "room for a request")?;
                harness.turns(TURNS);
                expect(counted(count, || client.poll()), "the completion of a Write")?;
            }
            Call::PollEmpty => {
                expect(!counted(count, || client.poll()), "an empty queue")?;
                harness.turns(1);
            }
        }
    }
    Ok((OPS * call.requests()) as u64)
}

fn counted<R>(count: bool, part: impl FnOnce() -> R) -> R {
    if count { measured(part) } else { part() }
}

/// An application of `heddle-verbs`.
struct Native {
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

impl Native {
    fn new(harness: &Harness) -> Result<Native, HarnessError> {
        let device = harness.device();
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(64, None)?;
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(16, 16))?;
        Ok(Native { mr: device.alloc_mr(pd, SIZE, Access::LOCAL_WRITE)?, cq, qp })
    }
}

impl Client for Native {
    fn qp(&self) -> &Qp {
        &self.qp
    }

    fn post_send(&mut self, (stag, to): (Stag, u64)) -> bool {
        self.qp.post_send(&SendWr::write(1, &[self.mr.sge(0, SIZE)], stag, to)).is_ok()
    }

    fn post_sends(&mut self, (stag, to): (Stag, u64)) -> bool {
        let sges = [self.mr.sge(0, SIZE)];
        self.qp.post_sends(&[SendWr::write(1, &sges, stag, to); LIST]).is_ok()
    }

    fn post_recv(&mut self) -> bool {
        self.qp.post_recv(&RecvWr::new(1, &[self.mr.sge(0, SIZE)])).is_ok()
    }

    fn poll(&mut self) -> bool {
        self.cq.poll().is_some_and(|c| c.status.is_success())
    }
}

/// An application of libibverbs, which makes the same calls as the inline functions of its header.
/// The application keeps its objects as long as the process lasts.
struct Foreign {
    _mr: Mr,
    sge: ibv_sge,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    found: Qp,
}

impl Foreign {
    fn new(harness: &Harness) -> Result<Foreign, HarnessError> {
        if !rnic::adopt(harness.device().clone()) {
            return Err(HarnessError::Ibverbs("rnic::adopt"));
        }
        let all = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        // SAFETY: the C contract is kept: each pointer is of the call before, and lives as long as
        // the process.
        let (pd, cq, qp) = unsafe {
            let list = some(ibv_get_device_list(null_mut()), "ibv_get_device_list")?;
            let context = some(ibv_open_device(*list), "ibv_open_device")?;
            let pd = some(ibv_alloc_pd(context), "ibv_alloc_pd")?;
            let cq = ibv_create_cq(context, 64, null_mut(), null_mut(), 0);
            let cq = some(cq, "ibv_create_cq")?;
            let mut init = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                cap: all,
                qp_type: IBV_QPT_RC,
                sq_sig_all: 0,
            };
            (Pd((*pd).handle), cq, some(ibv_create_qp(pd, &raw mut init), "ibv_create_qp")?)
        };
        // Valgrind has no way to share memory in place, as `ibv_reg_mr` would.
        let mr = harness.device().alloc_mr(pd, SIZE, Access::LOCAL_WRITE)?;
        let Sge { stag, len, to } = mr.sge(0, SIZE);
        let sge = ibv_sge { addr: to, length: len, lkey: stag.0 };
        // SAFETY: the structure has only integers, which all may be zero.
        let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
        // librdmacm makes the same transition to INIT.
        attr.qp_state = IBV_QPS_INIT;
        // SAFETY: `qp` and `attr` are live.
        let (number, changed) =
            unsafe { ((*qp).qp_num, ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE)) };
        if changed != 0 {
            return Err(HarnessError::Ibverbs("ibv_modify_qp"));
        }
        let found = rnic::find_qp(Qpn(number)).ok_or(HarnessError::Ibverbs("rnic::find_qp"))?;
        Ok(Foreign { _mr: mr, sge, cq, qp, found })
    }
}

fn some<T>(made: *mut T, what: &'static str) -> Result<*mut T, HarnessError> {
    if made.is_null() { Err(HarnessError::Ibverbs(what)) } else { Ok(made) }
}

impl Foreign {
    /// Returns a Write request to the given address.
    fn write(&mut self, (stag, to): (Stag, u64)) -> ibv_send_wr {
        // SAFETY: the structure has only integers, pointers and unions of them, which all may be
        // zero.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = 1;
        wr.sg_list = &raw mut self.sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr = ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: to, rkey: stag.0 } };
        wr
    }

    fn post(&self, list: *mut ibv_send_wr) -> bool {
        let mut bad = null_mut();
        // SAFETY: the C contract is kept: the queue pair lives, and so do the list and its SGE.
        unsafe {
            let post = (*(*self.qp).context).ops.post_send;
            post.is_some_and(|post| post(self.qp, list, &raw mut bad) == 0)
        }
    }
}

impl Client for Foreign {
    fn qp(&self) -> &Qp {
        &self.found
    }

    fn post_send(&mut self, to: (Stag, u64)) -> bool {
        let mut wr = self.write(to);
        self.post(&raw mut wr)
    }

    fn post_sends(&mut self, to: (Stag, u64)) -> bool {
        let mut list = [self.write(to); LIST];
        let mut next = null_mut();
        for wr in list.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        self.post(next)
    }

    fn post_recv(&mut self) -> bool {
        let mut wr =
            ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &raw mut self.sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: as in `post`: the queue pair lives, and so do `wr` and its SGE.
        unsafe {
            let post = (*(*self.qp).context).ops.post_recv;
            post.is_some_and(|post| post(self.qp, &raw mut wr, &raw mut bad) == 0)
        }
    }

    fn poll(&mut self) -> bool {
        let mut wc = core::mem::MaybeUninit::<ibv_wc>::uninit();
        // SAFETY: the C contract is kept: the queue lives, and the callee has written a completion
        // if it returns 1.
        unsafe {
            let poll = (*(*self.cq).context).ops.poll_cq;
            poll.is_some_and(|poll| poll(self.cq, 1, wc.as_mut_ptr()) == 1)
                && wc.assume_init_ref().status == IBV_WC_SUCCESS
        }
    }
}
