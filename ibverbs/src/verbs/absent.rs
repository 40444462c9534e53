//! Functions that iWARP, or an RNIC outside the kernel, does not have. Each fails with the errno
//! that the distribution's library returns for such a device.

use std::ffi::{c_int, c_uint, c_void};

use libc::{EINVAL, EOPNOTSUPP};

use super::errno;
use crate::abi::{ibv_ah_attr, ibv_context, ibv_ece, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_wc};

fn none<T>(errno: c_int) -> *mut T {
    errno::set(errno);
    std::ptr::null_mut()
}

/// Fails: address handles are for datagrams.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut c_void {
    none(EOPNOTSUPP)
}

/// Fails like [`ibv_create_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut c_void,
    _port: u8,
) -> *mut c_void {
    none(EOPNOTSUPP)
}

/// Fails like [`ibv_create_ah`].
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

/// Fails like [`ibv_create_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(_ah: *mut c_void) -> c_int {
    EINVAL
}

/// Fails: a program cannot ask for the link-layer address of a GID, because the RNIC keeps its ARP
/// to itself.
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

/// Fails: multicast is for datagrams.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    EOPNOTSUPP
}

/// Fails like [`ibv_attach_mcast`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    EOPNOTSUPP
}

/// Fails: a program imports a device by a descriptor of the kernel's, which this device does not
/// have.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    none(EOPNOTSUPP)
}

/// Fails like [`ibv_import_device`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    none(EOPNOTSUPP)
}

/// Does nothing, because [`ibv_import_pd`] imports nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// Fails like [`ibv_import_device`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    none(EOPNOTSUPP)
}

/// Does nothing, because [`ibv_import_mr`] imports nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

/// Fails: a software device has no memory of its own.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    none(EOPNOTSUPP)
}

/// Does nothing, because [`ibv_import_dm`] imports nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

/// Fails: enhanced connection establishment belongs to InfiniBand's connection manager.
///
/// # Safety
/// The C contract: `ece` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller keeps the C contract.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    EOPNOTSUPP
}

/// Fails like [`ibv_query_ece`], unless the program names no vendor.
///
/// # Safety
/// The C contract: `ece` can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let ece = unsafe { &mut *ece };
    if ece.comp_mask != 0 {
        return EINVAL;
    }
    // Without a vendor the program asks for no option, so nothing is refused.
    if ece.vendor_id == 0 {
        return 0;
    }
    ece.options = 0;
    EOPNOTSUPP
}

/// Returns 0, because data need not arrive in the order of its addresses: markers allow placement
/// ahead of a gap.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: c_int,
    _flags: c_uint,
) -> c_int {
    0
}
