//! Functions that the distribution's `librdmacm` needs of this library: conversions between the
//! kernel's and the programs' forms of attributes, and files that a driver would have.

use std::ffi::{CStr, c_char, c_int};
use std::mem::zeroed;

use libc::ENOENT;

use super::errno;
use crate::abi::{
    ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr, ibv_gid, ibv_global_route,
    ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec,
};

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.dgid },
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// Converts attributes of an address handle to the programs' form.
///
/// # Safety
/// `to` can be written and `from` read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    // SAFETY: the caller says that `to` can be written and `from` read.
    unsafe { to.write(ah_attr(&*from)) };
}

/// Converts a number of the kernel's interface to the program's, which has a sign.
fn signed(n: u32) -> c_int {
    n.cast_signed()
}

/// Converts attributes of a queue pair to the programs' form.
///
/// # Safety
/// `to` can be written and `from` read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // SAFETY: the caller says that `from` can be read.
    let from = unsafe { &*from };
    // SAFETY: the structure consists of integers, for which all zeros are valid.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = signed(from.qp_state);
    attr.cur_qp_state = signed(from.cur_qp_state);
    attr.path_mtu = signed(from.path_mtu);
    attr.path_mig_state = signed(from.path_mig_state);
    attr.qkey = from.qkey;
    attr.rq_psn = from.rq_psn;
    attr.sq_psn = from.sq_psn;
    attr.dest_qp_num = from.dest_qp_num;
    attr.qp_access_flags = from.qp_access_flags;
    attr.cap = ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    };
    attr.ah_attr = ah_attr(&from.ah_attr);
    attr.alt_ah_attr = ah_attr(&from.alt_ah_attr);
    attr.pkey_index = from.pkey_index;
    attr.alt_pkey_index = from.alt_pkey_index;
    attr.en_sqd_async_notify = from.en_sqd_async_notify;
    attr.sq_draining = from.sq_draining;
    attr.max_rd_atomic = from.max_rd_atomic;
    attr.max_dest_rd_atomic = from.max_dest_rd_atomic;
    attr.min_rnr_timer = from.min_rnr_timer;
    attr.port_num = from.port_num;
    attr.timeout = from.timeout;
    attr.retry_cnt = from.retry_cnt;
    attr.rnr_retry = from.rnr_retry;
    attr.alt_port_num = from.alt_port_num;
    attr.alt_timeout = from.alt_timeout;
    // SAFETY: the caller says that `to` can be written.
    unsafe { to.write(attr) };
}

/// Converts a path to the programs' form.
///
/// # Safety
/// `to` can be written and `from` read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: the caller says that `from` can be read.
    let from = unsafe { &*from };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: signed(from.raw_traffic),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: signed(from.reversible),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        // The code is below 256 in both forms, so one byte holds it.
        mtu: from.mtu.to_le_bytes()[0],
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller says that `to` can be written.
    unsafe { to.write(path) };
}

/// Converts a path to the kernel's form.
///
/// # Safety
/// `to` can be written and `from` read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller says that `from` can be read.
    let from = unsafe { &*from };
    let path = ib_user_path_rec {
        dgid: from.dgid.raw,
        sgid: from.sgid.raw,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller says that `to` can be written.
    unsafe { to.write(path) };
}

/// Returns the directory in which the kernel shows its devices.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of the device's driver. The only such file is the board's name.
///
/// # Safety
/// The names are null or end with a zero byte; `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    _dir: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    size: usize,
) -> c_int {
    const BOARD: &CStr = c"Heddle";
    // SAFETY: the caller says that the name is null or ends with a zero byte.
    let is_board = !file.is_null() && unsafe { CStr::from_ptr(file) } == c"board_id";
    if !is_board || size < BOARD.count_bytes() + 1 {
        errno::set(ENOENT);
        return -1;
    }
    // SAFETY: `to` has enough room, as checked above.
    unsafe { std::ptr::copy_nonoverlapping(BOARD.as_ptr(), to, BOARD.count_bytes() + 1) };
    c_int::try_from(BOARD.count_bytes()).unwrap_or(c_int::MAX)
}
