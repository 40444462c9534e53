//! Contexts, and the operations that inline functions of the header call through them.

use std::ffi::{c_int, c_uint, c_void};

use super::{
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr_ex, ibv_modify_cq_attr,
    ibv_mw, ibv_mw_bind, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_query_device_ex_input, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_srq_init_attr_ex, ibv_wc,
};

/// A slot for a function that no program calls, or that this device does not have.
pub type Absent = *const c_void;

#[repr(C)]
#[derive(Debug)]
pub struct ibv_context_ops {
    /// `query_device` to `dereg_mr`, which the header no longer calls through this table.
    pub _compat_first: [Absent; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: Absent,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    /// `cq_event` to `destroy_srq`.
    pub _compat_cq_srq: [Absent; 7],
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    /// `create_qp` to `destroy_qp`.
    pub _compat_qp: [Absent; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    /// `create_ah` to `async_event`.
    pub _compat_last: [Absent; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    /// All ones: the mark of a context inside a [`verbs_context`].
    pub abi_compat: usize,
}

pub const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

/// The structure grows at its front: a program checks [`sz`](verbs_context::sz) before it reads a
/// word.
#[repr(C)]
pub struct verbs_context {
    pub query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: Absent,
    pub alloc_null_mr: Absent,
    /// `read_counters` to `destroy_counters`.
    pub counters: [Absent; 4],
    /// `reg_dm_mr`, `alloc_dm`, `free_dm`.
    pub device_memory: [Absent; 3],
    /// `modify_flow_action_esp` to `create_flow_action_esp`.
    pub flow_actions: [Absent; 3],
    pub modify_qp_rate_limit: Absent,
    pub alloc_parent_domain: Absent,
    pub dealloc_td: Absent,
    pub alloc_td: Absent,
    pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: Absent,
    /// `destroy_rwq_ind_table` to `create_wq`.
    pub work_queues: [Absent; 5],
    pub query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub _priv: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    /// `destroy_flow` to `create_flow`, with one word between them and one after them.
    pub flows: [Absent; 4],
    pub open_qp: Absent,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd: Absent,
    pub close_xrcd: Absent,
    pub _abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}

/// Flags of `ibv_query_qp_data_in_order`.
pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: c_uint = 1;
