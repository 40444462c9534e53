//! What iWARP, or an RNIC that is no file of the kernel, does not have. Each call fails with the errno with which the
//! distribution's library answers on such a device.

use std::ffi::{c_int, c_uint, c_void};

use libc::{EINVAL, EOPNOTSUPP};

use super::errno;
use crate::abi::{ibv_ah_attr, ibv_context, ibv_ece, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_wc};

fn none<T>(errno: c_int) -> *mut T {
    errno::set(errno);
    std::ptr::null_mut()
}

/// Address handles are for datagrams.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut c_void {
    none(EOPNOTSUPP)
}

/// As [`ibv_create_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut c_void,
    _port: u8,
) -> *mut c_void {
    none(EOPNOTSUPP)
}

/// As [`ibv_create_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut c_void,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    errno::set(EOPNOTSUPP);
    -1
}

/// As [`ibv_create_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(_ah: *mut c_void) -> c_int {
    EINVAL
}

/// There is no link layer's address behind a GID: ARP is the RNIC's own.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    errno::set(EOPNOTSUPP);
    -1
}

/// Multicast is for datagrams.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    EOPNOTSUPP
}

/// As [`ibv_attach_mcast`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    EOPNOTSUPP
}

/// A device is imported by a descriptor of the kernel's.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    none(EOPNOTSUPP)
}

/// As [`ibv_import_device`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    none(EOPNOTSUPP)
}

/// As [`ibv_import_device`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// As [`ibv_import_device`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    none(EOPNOTSUPP)
}

/// As [`ibv_import_device`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

/// Software has no memory of a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    none(EOPNOTSUPP)
}

/// As [`ibv_import_dm`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

/// Enhanced connection establishment is a matter of InfiniBand's connection manager.
///
/// # Safety
/// The C contract: `ece` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C contract.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    EOPNOTSUPP
}

/// As [`ibv_query_ece`].
///
/// # Safety
/// The C contract: `ece` can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C contract.
    let ece = unsafe { &mut *ece };
    if ece.comp_mask != 0 {
        return EINVAL;
    }
    // No vendor: none of the options is taken.
    if ece.vendor_id == 0 {
        return 0;
    }
    ece.options = 0;
    EOPNOTSUPP
}

/// Whether data arrives in the order of its addresses. It need not: markers allow placement ahead of a gap.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: c_int,
    _flags: c_uint,
) -> c_int {
    0
}
