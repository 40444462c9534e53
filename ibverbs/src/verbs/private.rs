//! Names that the distribution's library keeps for its own drivers.
//!
//! perftest and DPDK load libraries of other devices (`libmlx5`, `libefa`), and the loader binds
//! these names then. This library drives none of those devices, so only the constructors that
//! announce a driver call these functions, and this library ignores such an announcement. Each
//! function fails with `ENOSYS`.

use std::ffi::{c_int, c_void};

use libc::ENOSYS;

use super::errno;

macro_rules! absent {
    (numbers: $($number:ident),*; pointers: $($pointer:ident),*;) => {
        $(
            #[doc(hidden)]
            #[unsafe(no_mangle)]
            pub(super) extern "C" fn $number() -> c_int {
                errno::set(ENOSYS);
                ENOSYS
            }
        )*
        $(
            #[doc(hidden)]
            #[unsafe(no_mangle)]
            pub(super) extern "C" fn $pointer() -> *mut c_void {
                errno::set(ENOSYS);
                std::ptr::null_mut()
            }
        )*
    };
}

absent! {
    numbers:
        __ioctl_final_num_attrs,
        __verbs_log,
        execute_ioctl,
        ibv_cmd_advise_mr,
        ibv_cmd_alloc_dm,
        ibv_cmd_alloc_mw,
        ibv_cmd_alloc_pd,
        ibv_cmd_attach_mcast,
        ibv_cmd_close_xrcd,
        ibv_cmd_create_ah,
        ibv_cmd_create_counters,
        ibv_cmd_create_cq,
        ibv_cmd_create_cq_ex,
        ibv_cmd_create_flow,
        ibv_cmd_create_flow_action_esp,
        ibv_cmd_create_qp,
        ibv_cmd_create_qp_ex,
        ibv_cmd_create_qp_ex2,
        ibv_cmd_create_rwq_ind_table,
        ibv_cmd_create_srq,
        ibv_cmd_create_srq_ex,
        ibv_cmd_create_wq,
        ibv_cmd_dealloc_mw,
        ibv_cmd_dealloc_pd,
        ibv_cmd_dereg_mr,
        ibv_cmd_destroy_ah,
        ibv_cmd_destroy_counters,
        ibv_cmd_destroy_cq,
        ibv_cmd_destroy_flow,
        ibv_cmd_destroy_flow_action,
        ibv_cmd_destroy_qp,
        ibv_cmd_destroy_rwq_ind_table,
        ibv_cmd_destroy_srq,
        ibv_cmd_destroy_wq,
        ibv_cmd_detach_mcast,
        ibv_cmd_free_dm,
        ibv_cmd_get_context,
        ibv_cmd_modify_cq,
        ibv_cmd_modify_flow_action_esp,
        ibv_cmd_modify_qp,
        ibv_cmd_modify_qp_ex,
        ibv_cmd_modify_srq,
        ibv_cmd_modify_wq,
        ibv_cmd_open_qp,
        ibv_cmd_open_xrcd,
        ibv_cmd_poll_cq,
        ibv_cmd_post_recv,
        ibv_cmd_post_send,
        ibv_cmd_post_srq_recv,
        ibv_cmd_query_context,
        ibv_cmd_query_device_any,
        ibv_cmd_query_mr,
        ibv_cmd_query_port,
        ibv_cmd_query_qp,
        ibv_cmd_query_srq,
        ibv_cmd_read_counters,
        ibv_cmd_reg_dm_mr,
        ibv_cmd_reg_dmabuf_mr,
        ibv_cmd_reg_mr,
        ibv_cmd_req_notify_cq,
        ibv_cmd_rereg_mr,
        ibv_cmd_resize_cq,
        ibv_read_ibdev_sysfs_file,
        verbs_init_cq,
        verbs_register_driver_34,
        verbs_set_ops,
        verbs_uninit_context;
    pointers:
        _verbs_init_and_alloc_context,
        verbs_open_device;
}

/// A flag that drivers set and that this library never reads.
#[doc(hidden)]
#[unsafe(no_mangle)]
pub(super) static mut verbs_allow_disassociate_destroy: bool = false;
