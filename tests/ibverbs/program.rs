//! The parts of a libibverbs program that the tests need, and its peer, which uses the Rust
//! library.

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use heddle_ibverbs::abi::*;
use heddle_ibverbs::rnic;
use heddle_ibverbs::verbs::*;
use heddle_types::mpa::RtrSet;
use heddle_verbs::{CmEvent, ConnectParams, Connection, Device, EventQueue, MpaOptions, Qpn};

use crate::lab::{PATIENCE, PEER, lab};

/// Pages for a program to register, in an allocation of their own.
pub(crate) struct Memory(pub(crate) *mut u8, pub(crate) usize);

impl Memory {
    pub(crate) fn new(len: usize) -> Memory {
        let layout = std::alloc::Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: the layout has a size above 0.
        Memory(unsafe { std::alloc::alloc_zeroed(layout) }, len)
    }

    pub(crate) fn fill(&self, off: usize, bytes: &[u8]) {
        assert!(off + bytes.len() <= self.1);
        // SAFETY: the range is inside the allocation.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.0.add(off), bytes.len()) };
    }

    pub(crate) fn bytes(&self, off: usize, len: usize) -> Vec<u8> {
        assert!(off + len <= self.1);
        // SAFETY: the range is inside the allocation, and no thread or RNIC writes there while a
        // test reads.
        unsafe { std::slice::from_raw_parts(self.0.add(off), len) }.to_vec()
    }

    pub(crate) fn addr(&self, off: usize) -> u64 {
        self.0.addr() as u64 + off as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.1, 4096).unwrap();
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.0, layout) };
    }
}

/// A context with a protection domain.
pub(crate) struct Program {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

impl Program {
    /// Opens the device of the lab's RNIC.
    pub(crate) fn start() -> Program {
        lab();
        Program::open()
    }

    /// Opens the process's device.
    pub(crate) fn open() -> Program {
        // SAFETY: the test keeps the C contract.
        unsafe {
            let mut count = 0;
            let list = ibv_get_device_list(&raw mut count);
            assert_eq!(count, 1);
            let context = ibv_open_device(*list);
            assert!(!context.is_null(), "errno {}", errno());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            Program { context, pd }
        }
    }

    pub(crate) fn register(&self, memory: &Memory, access: u32) -> *mut ibv_mr {
        // SAFETY: the test keeps the C contract.
        let mr = unsafe { ibv_reg_mr(self.pd, memory.0.cast(), memory.1, access.cast_signed()) };
        assert!(!mr.is_null(), "errno {}", errno());
        mr
    }

    pub(crate) fn cq(&self, depth: c_int, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: the test keeps the C contract.
        let cq = unsafe { ibv_create_cq(self.context, depth, null_mut(), channel, 0) };
        assert!(!cq.is_null(), "errno {}", errno());
        cq
    }

    pub(crate) fn init(&self, cq: *mut ibv_cq) -> ibv_qp_init_attr {
        // SAFETY: the structure consists of pointers and integers, for which all zeros are valid.
        let mut init: ibv_qp_init_attr = unsafe { zeroed() };
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
        init.cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        init
    }

    pub(crate) fn qp(&self, init: &mut ibv_qp_init_attr) -> *mut ibv_qp {
        // SAFETY: the test keeps the C contract.
        unsafe {
            let qp = ibv_create_qp(self.pd, init);
            assert!(!qp.is_null(), "errno {}", errno());
            set_state(qp, IBV_QPS_INIT);
            qp
        }
    }

    pub(crate) fn poll(&self, cq: *mut ibv_cq, count: usize) -> Vec<ibv_wc> {
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while all.len() < count {
            // SAFETY: the structures consist of integers, for which all zeros are valid.
            let mut wc: [ibv_wc; 4] = unsafe { zeroed() };
            let most = c_int::try_from((count - all.len()).min(4)).unwrap();
            // SAFETY: the test keeps the C contract.
            let got = unsafe { (*self.context).ops.poll_cq.unwrap()(cq, most, wc.as_mut_ptr()) };
            all.extend_from_slice(&wc[..usize::try_from(got).unwrap()]);
            assert!(Instant::now() < until, "{} of {count} completions", all.len());
            std::thread::yield_now();
        }
        all
    }

    /// Waits for a single completion, which must be a success.
    pub(crate) fn done(&self, cq: *mut ibv_cq) -> ibv_wc {
        let wc = self.poll(cq, 1)[0];
        assert_eq!(wc.status, IBV_WC_SUCCESS, "{wc:?}");
        wc
    }

    pub(crate) fn send(&self, qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> c_int {
        let mut bad = null_mut();
        // SAFETY: the test keeps the C contract.
        unsafe { (*self.context).ops.post_send.unwrap()(qp, wr, &raw mut bad) }
    }

    pub(crate) fn receive(&self, qp: *mut ibv_qp, wr_id: u64, sge: &mut ibv_sge) {
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the test keeps the C contract.
        let posted =
            unsafe { (*self.context).ops.post_recv.unwrap()(qp, &raw mut wr, &raw mut bad) };
        assert_eq!(posted, 0);
    }

    /// Connects a queue pair to a new peer, whose own queue pair `configure` has set up.
    pub(crate) fn connect(&self, qp: *mut ibv_qp) -> Peer {
        static PORT: AtomicU16 = AtomicU16::new(20_000);
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let at = SocketAddr::new(PEER.parse().unwrap(), port);
        let device = Device::open(lab().peers()).unwrap();
        let listener = device.bind(at).unwrap();
        let accepting =
            std::thread::spawn(move || listener.request(PATIENCE).unwrap().accept().unwrap());
        let own = rnic::device().unwrap();
        // SAFETY: the queue pair is live.
        let number = unsafe { (*qp).qp_num };
        let events = EventQueue::new(None);
        // Either side may send first.
        let either = MpaOptions::new().peer_to_peer(RtrSet::ALL);
        let params = ConnectParams::new(rnic::find_qp(Qpn(number)).unwrap()).mpa(either);
        own.connect(at, params, &events).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            match events.poll() {
                Some(CmEvent::Established { .. }) => break,
                Some(other) => panic!("{other:?}"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < until, "no connection");
        }
        Peer { connection: accepting.join().unwrap(), _events: events }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the test keeps the C contract; it destroys the objects that it makes, and
        // otherwise this check fails.
        unsafe {
            assert_eq!(ibv_dealloc_pd(self.pd), 0, "something is left in the protection domain");
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// The other end of a connection.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    _events: EventQueue,
}

pub(crate) fn set_state(qp: *mut ibv_qp, state: c_int) {
    assert_eq!(try_state(qp, state), 0);
}

pub(crate) fn try_state(qp: *mut ibv_qp, state: c_int) -> c_int {
    // SAFETY: the structure consists of integers, for which all zeros are valid.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    // SAFETY: the test keeps the C contract.
    unsafe { ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE) }
}

pub(crate) fn state_of(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the structures consist of integers and pointers, for which all zeros are valid; the
    // test keeps the C contract.
    unsafe {
        let (mut attr, mut init) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp(qp, &raw mut attr, IBV_QP_STATE, &raw mut init), 0);
        let attr: ibv_qp_attr = attr;
        assert_eq!(attr.qp_state, (*qp).state);
        attr.qp_state
    }
}

/// Builds a signaled request over these pieces.
pub(crate) fn request(wr_id: u64, opcode: c_int, pieces: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (pieces.as_mut_ptr(), pieces.len().try_into().unwrap());
    wr
}
