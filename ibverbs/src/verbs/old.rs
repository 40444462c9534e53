//! The interface of 2005, `IBVERBS_1.0`, for whose structures no program has been built since 2007.
//!
//! The names exist so that the loader accepts a program of that age, and the program learns that it
//! cannot be served: its list of devices is null with `ENOSYS`, and without a device the program
//! cannot call the other functions.
//!
//! Rust has no symbol versions, so assembly directives define these; the version script gives all
//! other names theirs.

use std::ffi::{c_int, c_void};

use libc::ENOSYS;

use super::errno;

extern "C" fn old_number() -> c_int {
    errno::set(ENOSYS);
    ENOSYS
}

extern "C" fn old_pointer() -> *mut c_void {
    errno::set(ENOSYS);
    std::ptr::null_mut()
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

std::arch::global_asm!(
    ".pushsection .text.heddle_old, \"ax\", @progbits",
    ".globl heddle_old_number",
    ".type heddle_old_number, @function",
    "heddle_old_number:",
    concat!(jump!(), " {number}"),
    ".size heddle_old_number, . - heddle_old_number",
    ".globl heddle_old_pointer",
    ".type heddle_old_pointer, @function",
    "heddle_old_pointer:",
    concat!(jump!(), " {pointer}"),
    ".size heddle_old_pointer, . - heddle_old_pointer",
    ".popsection",
    ".symver heddle_old_number, ibv_ack_async_event@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_ack_cq_events@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_attach_mcast@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_close_device@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_dealloc_pd@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_dereg_mr@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_destroy_ah@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_destroy_cq@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_destroy_qp@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_destroy_srq@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_detach_mcast@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_free_device_list@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_get_async_event@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_get_cq_event@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_modify_qp@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_modify_srq@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_query_device@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_query_gid@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_query_pkey@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_query_port@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_query_qp@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_query_srq@IBVERBS_1.0",
    ".symver heddle_old_number, ibv_register_driver@IBVERBS_1.1",
    ".symver heddle_old_number, ibv_resize_cq@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_alloc_pd@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_create_ah@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_create_cq@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_create_qp@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_create_srq@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_get_device_guid@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_get_device_list@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_get_device_name@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_open_device@IBVERBS_1.0",
    ".symver heddle_old_pointer, ibv_reg_mr@IBVERBS_1.0",
    number = sym old_number,
    pointer = sym old_pointer,
);
