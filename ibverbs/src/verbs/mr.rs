//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use heddle_verbs::{Access, Mr, MrInit};
use libc::{EBUSY, EFAULT, EINVAL, EIO, EOPNOTSUPP};

use super::pd::{PdObject, User};
use super::{errno, number, object};
use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD,
    IBV_REREG_MR_ERR_INPUT, ibv_mr, ibv_pd,
};
use crate::memory::{self, Plan, Shared};

/// A memory region. `users` counts the windows of type 1 that are bound to it.
#[repr(C)]
pub(crate) struct MrObject {
    base: ibv_mr,
    pub(super) users: AtomicU32,
    /// `None` only for a moment, within a call that replaces the registration.
    registered: Option<Registered>,
    access: c_uint,
    /// The address by which peers name the first byte.
    iova: u64,
}

/// A registration, and the memory that it keeps shared. The fields drop in this order, so that the
/// RNIC forgets the memory first.
struct Registered {
    mr: Mr,
    _memory: Shared,
    _pd: User,
}

impl MrObject {
    /// Returns the object of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `mr` is live for as long as `'a`.
    pub(super) unsafe fn of<'a>(mr: *mut ibv_mr) -> &'a MrObject {
        // SAFETY: the structure is the first field of an `MrObject`.
        unsafe { &*mr.cast::<MrObject>() }
    }

    pub(super) fn mr(&self) -> Option<&Mr> {
        self.registered.as_ref().map(|r| &r.mr)
    }
}

/// Returns the rights that access flags stand for.
///
/// # Errors
/// Returns `EINVAL` for unknown flags, and for flags that let a peer change memory which this side
/// may not change; `EOPNOTSUPP` for on-demand memory, which is registered before its pages exist.
pub(super) fn rights(flags: c_uint) -> Result<Access, i32> {
    const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_OPTIONAL_RANGE;
    if flags & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(EOPNOTSUPP);
    }
    let changes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if flags & !KNOWN != 0 || flags & changes != 0 && flags & IBV_ACCESS_LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    Ok(access(flags))
}

/// Converts flags to rights without checking that they go together, because windows have no local
/// rights.
pub(super) fn access(flags: c_uint) -> Access {
    [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::BIND),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .fold(Access::NONE, |access, (_, right)| access.with(right))
}

fn register(
    pd: &PdObject,
    (addr, len): (usize, usize),
    iova: u64,
    flags: c_uint,
) -> Result<Registered, i32> {
    let access = rights(flags)?;
    if len == 0 || addr.checked_add(len).is_none() || iova.checked_add(len as u64).is_none() {
        return Err(EINVAL);
    }
    let device = &pd.context().device;
    let plan = memory::plan(addr, len, device.takes_files())?;
    // The RNIC could write memory that the program may only read, so refuse such a registration.
    if access.has(Access::LOCAL_WRITE) && !plan.is_writable() {
        return Err(EFAULT);
    }
    let (region, range) = (plan.region().clone(), (plan.offset(), len));
    let (mut plan, mut memory) = (Some(plan), None);
    // This thread converts the memory while the RNIC registers it; that is safe because no peer
    // knows the STag yet.
    let init = MrInit { access, to: Some(iova), qp: None };
    let mr = device.register_mr_while(pd.pd, &region, range, &init, &mut || {
        memory = plan.take().map(Plan::carry_out);
    });
    // If the RNIC was not asked, the plan still holds the conversion lock, so release it before
    // logging.
    drop(plan);
    let mr = mr.map_err(|e| {
        memory::log(&format!("cannot register {len} bytes at {addr:#x}: {e}"));
        errno::of(&e)
    })?;
    let memory = memory.unwrap_or(Err(EIO))?;
    Ok(Registered { mr, _memory: memory, _pd: pd.user() })
}

fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    object(|| {
        // SAFETY: each caller has `pd` by the C contract.
        let domain = unsafe { PdObject::of(pd) };
        let iova = if flags & IBV_ACCESS_ZERO_BASED == 0 { iova } else { 0 };
        let registered = register(domain, (addr.addr(), length), iova, flags)?;
        let stag = registered.mr.stag().0;
        // SAFETY: the caller keeps the C contract.
        let context = unsafe { (*pd).context };
        let base = ibv_mr { context, pd, addr, length, handle: stag, lkey: stag, rkey: stag };
        let (users, registered) = (AtomicU32::new(0), Some(registered));
        let mr = MrObject { base, users, registered, access: flags, iova };
        Ok(Box::into_raw(Box::new(mr)).cast())
    })
}

/// Registers memory of the program, which peers name by its address.
///
/// # Safety
/// The C contract: `pd` is live, and the memory stays mapped until the program unregisters the
/// region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    reg_mr(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
}

/// Registers memory like [`ibv_reg_mr`], but peers name its first byte `iova`.
///
/// # Safety
/// The conditions of [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    reg_mr(pd, addr, length, iova, access.cast_unsigned())
}

/// Registers memory like [`ibv_reg_mr_iova`], with flags that a device may ignore.
///
/// # Safety
/// The conditions of [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    reg_mr(pd, addr, length, iova, access)
}

/// Fails: the RNIC is software and reaches only the memory of processes, not the memory of another
/// device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    object(|| {
        // SAFETY: the call only asks for a flag of a descriptor, whichever file that is.
        let open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        Err(if open { EOPNOTSUPP } else { libc::EBADF })
    })
}

/// Changes a region. The region then has new keys, which the program reads in the structure.
///
/// # Safety
/// The C contract: `mr` is live, and so is `pd` if the region is to move to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const ALL: c_int =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let refused = |e: i32| {
        errno::set(e);
        IBV_REREG_MR_ERR_INPUT
    };
    super::guarded(IBV_REREG_MR_ERR_CMD, || {
        let changes = |what: c_int| flags & what != 0;
        if flags == 0
            || flags & !ALL != 0
            || changes(IBV_REREG_MR_CHANGE_TRANSLATION) && (addr.is_null() || length == 0)
            || changes(IBV_REREG_MR_CHANGE_PD) && pd.is_null()
        {
            return refused(EINVAL);
        }
        // SAFETY: by the C contract, no other thread uses a region while a thread changes it.
        let region = unsafe { &mut *mr.cast::<MrObject>() };
        if region.users.load(Ordering::Acquire) != 0 {
            return refused(EBUSY);
        }
        let pd = if changes(IBV_REREG_MR_CHANGE_PD) { pd } else { region.base.pd };
        let (addr, length, iova) = if changes(IBV_REREG_MR_CHANGE_TRANSLATION) {
            (addr, length, addr.addr() as u64)
        } else {
            (region.base.addr, region.base.length, region.iova)
        };
        let access = if changes(IBV_REREG_MR_CHANGE_ACCESS) {
            access.cast_unsigned()
        } else {
            region.access
        };
        // Make the new registration first, so that a failure leaves the region as it was. SAFETY:
        // the caller keeps the C contract.
        let domain = unsafe { PdObject::of(pd) };
        let new = match register(domain, (addr.addr(), length), iova, access) {
            Ok(new) => new,
            Err(error) => return refused(error),
        };
        let stag = new.mr.stag().0;
        if let Err((error, old)) = end(region.registered.take()) {
            region.registered = old;
            return refused(error);
        }
        region.registered = Some(new);
        (region.base.pd, region.base.addr, region.base.length) = (pd, addr, length);
        (region.base.lkey, region.base.rkey, region.base.handle) = (stag, stag, stag);
        (region.access, region.iova) = (access, iova);
        0
    })
}

/// Ends a registration, unless windows of type 2 are bound to it.
fn end(registered: Option<Registered>) -> Result<(), (i32, Option<Registered>)> {
    let Some(Registered { mr, _memory: memory, _pd: pd }) = registered else { return Ok(()) };
    match mr.deregister() {
        Ok(()) => Ok(()),
        Err(bound) => Err((EBUSY, Some(Registered { mr: *bound.mr, _memory: memory, _pd: pd }))),
    }
}

/// Unregisters a region. When the call returns, the memory is the program's own again.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    number(|| {
        // SAFETY: by the C contract, this is the last use of the region.
        let region = unsafe { &mut *mr.cast::<MrObject>() };
        if region.users.load(Ordering::Acquire) != 0 {
            return Err(EBUSY);
        }
        end(region.registered.take()).map_err(|(error, old)| {
            region.registered = old;
            error
        })?;
        // SAFETY: this is the box that `reg_mr` made.
        drop(unsafe { Box::from_raw(mr.cast::<MrObject>()) });
        Ok(())
    })
}
