//! Queries about a device and its port.

use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::net::{IpAddr, Ipv6Addr};

use heddle_verbs::Atomics;
use libc::{EINVAL, ENODATA, EOPNOTSUPP};

use super::device::{Context, put};
use super::{errno, guarded, number};
use crate::abi::{
    IBV_ATOMIC_GLOB, IBV_ATOMIC_HCA, IBV_ATOMIC_NONE, IBV_DEVICE_MEM_MGT_EXTENSIONS,
    IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_GID_TYPE_IB, IBV_LINK_LAYER_ETHERNET,
    IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096, IBV_PORT_ACTIVE,
    IBV_PORT_CM_SUP, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, IBV_VALUES_MASK_RAW_CLOCK, ibv_context,
    ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
    ibv_query_device_ex_input, ibv_values_ex,
};
use crate::rnic::interfaces::{self, At};

mod port;

pub(super) use port::guid;

/// The number of the only port.
pub(super) const PORT: u8 = 1;

/// An OUI that no vendor has, because it is locally administered.
const VENDOR: u32 = 0x02_4844;

/// Bytes of a port's attributes that the exported function writes: programs older than
/// `port_cap_flags2` have no room for more.
const OLD_PORT_ATTR: usize = 48;

/// Converts `value`, capped at the largest number that the ABI can hold.
fn int(value: impl Into<u64>) -> c_int {
    c_int::try_from(value.into()).unwrap_or(c_int::MAX)
}

fn attributes(context: &Context) -> ibv_device_attr {
    let most = context.device.limits();
    // SAFETY: the structure consists of integers and arrays of them, for which all zeros are valid.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    put(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid().to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = most.max_mr_size;
    attr.page_size_cap = most.page_sizes;
    attr.vendor_id = VENDOR;
    attr.max_qp = int(most.max_qps);
    attr.max_qp_wr = int(most.max_qp_wrs);
    attr.device_cap_flags =
        IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    attr.max_sge = int(most.max_sges);
    attr.max_sge_rd = 1;
    attr.max_cq = int(most.max_cqs);
    attr.max_cqe = int(most.max_cqes);
    attr.max_mr = int(most.max_mrs);
    attr.max_pd = int(most.max_pds);
    // `rdma_conn_param` has one byte for these, so a program cannot ask for more.
    attr.max_qp_rd_atom = int(most.max_ird.min(255));
    attr.max_qp_init_rd_atom = int(most.max_ord.min(255));
    attr.max_res_rd_atom = int(u64::from(most.max_ird) * u64::from(most.max_qps));
    attr.atomic_cap = match most.atomics {
        Atomics::None => IBV_ATOMIC_NONE,
        Atomics::Rnic => IBV_ATOMIC_HCA,
        Atomics::Global => IBV_ATOMIC_GLOB,
    };
    attr.max_mw = int(most.max_mws);
    attr.max_srq = int(most.max_srqs);
    attr.max_srq_wr = int(most.max_srq_wrs);
    attr.max_srq_sge = int(most.max_sges);
    attr.max_pkeys = 1;
    attr.phys_port_cnt = PORT;
    attr
}

/// Reports the limits of the device.
///
/// # Safety
/// The C contract: `context` is open and `attr` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        unsafe { attr.write(attributes(Context::of(context))) };
        Ok(())
    })
}

/// Writes as much of `value` as fits into the caller's `size` bytes, and zeros after it.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn write_prefix<T>(value: &T, to: *mut T, size: usize) {
    let from = std::ptr::from_ref(value);
    // SAFETY: the caller has room for `size` bytes, and the copy reads no more of the value than
    // exists.
    unsafe {
        std::ptr::write_bytes(to.cast::<u8>(), 0, size);
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), size.min(size_of::<T>()));
    }
}

/// # Safety
/// The C contract; `attr` has room for `size` bytes.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    number(|| {
        // SAFETY: by the C contract, the pointer is null or readable.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
            || size < size_of::<ibv_device_attr>()
        {
            return Err(EINVAL);
        }
        // SAFETY: the structure consists of integers and arrays of them, for which all zeros are
        // valid.
        let mut all: ibv_device_attr_ex = unsafe { zeroed() };
        // SAFETY: the caller keeps the C contract.
        all.orig_attr = attributes(unsafe { Context::of(context) });
        all.device_cap_flags_ex = all.orig_attr.device_cap_flags.into();
        // The clock is the monotonic one in nanoseconds: all bits count, and a millisecond has
        // 1,000,000 ticks, so 1,000,000 kHz.
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = 1_000_000;
        all.phys_port_cnt_ex = PORT.into();
        // SAFETY: the caller says how much room `attr` has.
        unsafe { write_prefix(&all, attr, size) };
        Ok(())
    })
}

/// Returns the code of the largest MTU that is not above `bytes`.
fn mtu_code(bytes: u16) -> c_int {
    match bytes {
        4096.. => IBV_MTU_4096,
        2048.. => IBV_MTU_2048,
        1024.. => IBV_MTU_1024,
        512.. => IBV_MTU_512,
        _ => IBV_MTU_256,
    }
}

/// # Safety
/// The C contract; `attr` has room for `size` bytes.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number_of_port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    number(|| {
        if number_of_port != PORT {
            return Err(EINVAL);
        }
        // SAFETY: the caller keeps the C contract.
        let context = unsafe { Context::of(context) };
        let port = port::of(&context.device)?;
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut all: ibv_port_attr = unsafe { zeroed() };
        all.state = if port.up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
        all.max_mtu = IBV_MTU_4096;
        all.active_mtu = mtu_code(port.mtu);
        all.gid_tbl_len = int(port.addresses.len().max(1) as u64);
        all.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
        all.max_msg_sz = context.device.limits().max_message;
        all.pkey_tbl_len = 1;
        // The port has one virtual lane. Its speed is unknown: four lanes of 10 Gbit/s stand in for
        // it.
        all.max_vl_num = 1;
        all.active_width = 2;
        all.active_speed = 4;
        // The ABI's numbers for LinkUp and Disabled.
        all.phys_state = if port.up { 5 } else { 3 };
        all.link_layer = IBV_LINK_LAYER_ETHERNET;
        // SAFETY: the caller says how much room `attr` has.
        unsafe { write_prefix(&all, attr, size) };
        Ok(())
    })
}

/// Reports the port's attributes, for programs older than the structure's last field.
///
/// # Safety
/// The C contract: `context` is open and `attr` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the function passes its arguments on; programs that call it have room for this many
    // bytes.
    unsafe { query_port(context, port, attr, OLD_PORT_ATTR) }
}

/// Returns the GID of an address: the address itself, in IPv6's form.
fn gid_of(address: IpAddr) -> ibv_gid {
    ibv_gid { raw: crate::ucma::address::gid(address) }
}

/// Returns the GID with this index.
fn gid(context: &Context, port: u32, index: u64) -> Result<ibv_gid, i32> {
    let index = usize::try_from(index).map_err(|_| EINVAL)?;
    if port != u32::from(PORT) {
        return Err(EINVAL);
    }
    let addresses = port::of(&context.device)?.addresses;
    addresses.get(index).copied().map(gid_of).ok_or(ENODATA)
}

/// Reports a GID of the port: the port has one for each of the RNIC's addresses.
///
/// # Safety
/// The C contract: `context` is open and `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the caller keeps the C contract.
        let context = unsafe { Context::of(context) };
        let index = u64::try_from(index).map_err(|_| EINVAL);
        match index.and_then(|index| gid(context, port.into(), index)) {
            Ok(gid) => {
                // SAFETY: the caller keeps the C contract.
                unsafe { out.write(gid) };
                0
            }
            Err(error) => {
                errno::set(if error == ENODATA { EINVAL } else { error });
                -1
            }
        }
    })
}

/// Returns the kernel's index of the interface that has this address, or 0 if no interface has it:
/// an RNIC without a port of its own uses addresses of its host.
fn interface_of(address: IpAddr, interfaces: &[(u32, At)]) -> u32 {
    let found = interfaces.iter().find(|(_, at)| *at == At::Ip(address));
    found.map_or(0, |(index, _)| *index)
}

/// Builds an entry of a GID table.
fn entry(gid: ibv_gid, index: u32, interfaces: &[(u32, At)]) -> ibv_gid_entry {
    let address = IpAddr::from(Ipv6Addr::from(gid.raw)).to_canonical();
    ibv_gid_entry {
        gid,
        gid_index: index,
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_IB,
        ndev_ifindex: interface_of(address, interfaces),
    }
}

/// Reports an entry of the GID table.
///
/// # Safety
/// The C contract: `context` is open and `out` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    number(|| {
        if flags != 0 {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the caller keeps the C contract.
        let gid = gid(unsafe { Context::of(context) }, port, index.into())?;
        // SAFETY: the caller says how much room `out` has.
        unsafe { write_prefix(&entry(gid, index, &interfaces::all()), out, size) };
        Ok(())
    })
}

/// Reports all entries of the GID table and returns their number.
///
/// # Safety
/// The C contract: `context` is open and `out` has room for `max` entries of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> libc::ssize_t {
    let negative = |e: i32| -libc::ssize_t::try_from(e).unwrap_or(1);
    guarded(negative(libc::EIO), || {
        if flags != 0 {
            return negative(EOPNOTSUPP);
        }
        // SAFETY: the caller keeps the C contract.
        let context = unsafe { Context::of(context) };
        let addresses = match port::of(&context.device) {
            Ok(port) => port.addresses,
            Err(error) => return negative(error),
        };
        if addresses.len() > max {
            return negative(EINVAL);
        }
        let interfaces = interfaces::all();
        for (index, address) in (0u32..).zip(&addresses) {
            let entry = entry(gid_of(*address), index, &interfaces);
            let at = size.saturating_mul(index as usize);
            // SAFETY: there are no more entries than the caller has room for.
            unsafe { write_prefix(&entry, out.byte_add(at), size) };
        }
        libc::ssize_t::try_from(addresses.len()).unwrap_or(libc::ssize_t::MAX)
    })
}

/// Reports the type of a GID, for other libraries of the distribution's package.
///
/// # Safety
/// The C contract: `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    _index: c_uint,
    out: *mut c_int,
) -> c_int {
    if port != PORT {
        errno::set(EINVAL);
        return -1;
    }
    // SAFETY: the caller keeps the C contract. The type of InfiniBand is 0, and iWARP has no other.
    unsafe { out.write(0) };
    0
}

/// The only partition key, which iWARP does not use.
const PKEY: u16 = 0xffff;

/// Reports a partition key.
///
/// # Safety
/// The C contract: `pkey` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != PORT || index != 0 {
        errno::set(EINVAL);
        return -1;
    }
    // SAFETY: the caller keeps the C contract.
    unsafe { pkey.write(PKEY.to_be()) };
    0
}

/// Returns the index of a partition key, which is in network byte order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if port == PORT && pkey == PKEY.to_be() {
        return 0;
    }
    errno::set(EINVAL);
    -1
}

/// Reads a clock. The monotonic clock in nanoseconds is the unit of completion timestamps and of
/// `query_rt_values`.
pub(super) fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a live structure; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(which, &raw mut now) };
    now
}

/// # Safety
/// The C contract: `values` can be read and written.
pub(super) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let values = unsafe { &mut *values };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return EINVAL;
    }
    if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        // Report the time as hardware does: the ticks of its clock in the field for nanoseconds.
        let now = clock(libc::CLOCK_MONOTONIC);
        let ticks = now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec);
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks };
    }
    0
}
