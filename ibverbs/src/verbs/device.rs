//! The list of devices, and contexts.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, zeroed};
use std::ptr::null_mut;
use std::sync::OnceLock;

use heddle_verbs::Device;
use libc::{EINVAL, ENODEV};

use super::{cq, cq_ex, errno, events, mw, number, object, post, qp, query, srq};
use crate::abi::{IBV_NODE_RNIC, IBV_TRANSPORT_IWARP, ibv_context, ibv_device, verbs_context};
use crate::{rnic, ucma};

/// The name of the only device.
pub const NAME: &str = "heddle0";

/// The device, which lives as long as the process, because programs keep pointers to it longer than
/// the list.
struct TheDevice(ibv_device);

// SAFETY: no thread writes the structure after it was made, and its pointers are null.
unsafe impl Send for TheDevice {}
// SAFETY: as above.
unsafe impl Sync for TheDevice {}

fn the_device() -> *mut ibv_device {
    static DEVICE: OnceLock<TheDevice> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        // SAFETY: the structure consists of pointers, integers and arrays of them, for which all
        // zeros are valid.
        let mut device: ibv_device = unsafe { zeroed() };
        device.node_type = IBV_NODE_RNIC;
        device.transport_type = IBV_TRANSPORT_IWARP;
        put(&mut device.name, NAME);
        put(&mut device.dev_name, "uverbs0");
        // Neither path exists. A program that joins a file's name to one of them finds no file, as
        // for a device whose driver lacks that file.
        put(&mut device.dev_path, "/sys/class/infiniband_verbs/heddle-uverbs0");
        put(&mut device.ibdev_path, "/sys/class/infiniband/heddle0");
        TheDevice(device)
    });
    (&raw const device.0).cast_mut()
}

/// Writes text and a zero byte, truncated to the room in `to`.
pub(super) fn put(to: &mut [c_char], text: &str) {
    let room = to.len().saturating_sub(1);
    for (to, from) in to.iter_mut().zip(text.bytes().take(room)) {
        *to = c_char::from_ne_bytes([from]);
    }
}

/// Returns the devices of this process: always one, even while its RNIC cannot be reached.
///
/// # Safety
/// `num` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    object(|| {
        rnic::keep_descriptors_high();
        ucma::install();
        // The entry after the last is null.
        let list = Box::new([the_device(), null_mut()]);
        if !num.is_null() {
            // SAFETY: the caller says that the number can be written.
            unsafe { num.write(1) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

/// Frees a list; the device itself stays.
///
/// # Safety
/// The C contract: `list` came from [`ibv_get_device_list`] and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: this is the box of two entries that `ibv_get_device_list` made.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

/// Returns the name of a device as a C string that lives as long as the process.
///
/// # Safety
/// The C contract: `device` came from the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: by the C contract, the device is live.
    unsafe { (&raw const (*device).name).cast() }
}

/// Returns the kernel's index of the device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    // The kernel has no such device, and so no index for it.
    -1
}

/// Returns the device's GUID in network byte order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    query::guid().to_be()
}

/// A context. Programs see its field `verbs.context`.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    pub(super) device: Device,
    pub(super) events: events::Events,
}

impl Context {
    /// Returns the context of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `context` came from [`ibv_open_device`] and stays open for as long as `'a`.
    pub(super) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: the pointer is the last field of the `verbs_context` that a `Context` begins
        // with.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }
}

fn operations(context: &mut verbs_context) {
    context.query_port = Some(query::query_port);
    context.modify_cq = Some(cq::modify_cq);
    context.query_rt_values = Some(query::query_rt_values);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_qp_ex = Some(qp::create_qp_ex);
    context.get_srq_num = Some(srq::get_srq_num);
    context.create_srq_ex = Some(srq::create_srq_ex);
    let ops = &mut context.context.ops;
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

/// Makes a context of the device. The first context opens the device.
///
/// # Safety
/// The C contract: `device` came from the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object(|| {
        if device != the_device() {
            return Err(ENODEV);
        }
        let opened = rnic::device().map_err(|error| errno::opening(&error))?.clone();
        let events = events::Events::new(&opened)?;
        // SAFETY: the structure consists of pointers, integers and optional functions, for which
        // all zeros are valid.
        let mut verbs: verbs_context = unsafe { zeroed() };
        operations(&mut verbs);
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device;
        verbs.context.abi_compat = usize::MAX;
        verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        verbs.context.num_comp_vectors = 1;
        verbs.context.async_fd = events.fd();
        // The context has no file of the kernel. Programs only pass this number on, and every
        // system call on it fails.
        verbs.context.cmd_fd = -1;
        let context = Box::into_raw(Box::new(Context { verbs, device: opened, events }));
        // SAFETY: the context was just made and is live.
        Ok(unsafe { &raw mut (*context).verbs.context })
    })
}

/// Closes a context and frees it.
///
/// # Safety
/// The C contract: `context` is open, and every object made in it is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    number(|| {
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: this is the box that `ibv_open_device` made.
        drop(unsafe {
            let whole = context.byte_sub(offset_of!(verbs_context, context));
            Box::from_raw(whole.cast::<Context>())
        });
        Ok(())
    })
}
