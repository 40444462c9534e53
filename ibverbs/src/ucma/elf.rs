//! Changes the tables of imported functions of this process's objects.
//!
//! The dynamic linker fills in a table for each object; an entry is the address that the object's
//! calls go to. In an object that was linked with `-z relro -z now` the linker write-protects the
//! table after filling it in; this module lifts the protection for the moment of a change.

#![expect(
    clippy::cast_possible_truncation,
    reason = "an address of ELF64 is a usize of this process"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::dl_phdr_info;

use super::errno::Errno;

#[cfg(target_arch = "x86_64")]
mod kind {
    pub(super) const GLOB_DAT: u32 = 6;
    pub(super) const JUMP_SLOT: u32 = 7;
}
#[cfg(target_arch = "aarch64")]
mod kind {
    pub(super) const GLOB_DAT: u32 = 1025;
    pub(super) const JUMP_SLOT: u32 = 1026;
}

/// Tags of the dynamic section.
mod tag {
    pub(super) const NULL: i64 = 0;
    pub(super) const PLT_LEN: i64 = 2;
    pub(super) const STRINGS: i64 = 5;
    pub(super) const SYMBOLS: i64 = 6;
    pub(super) const RELA: i64 = 7;
    pub(super) const RELA_LEN: i64 = 8;
    pub(super) const PLT: i64 = 23;
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Rela {
    offset: usize,
    info: u64,
    addend: i64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Chooses the new address of an imported function; `None` leaves the old one.
type Choose = fn(&[u8]) -> Option<usize>;

struct Search<'a> {
    mark: &'a [u8],
    choose: Choose,
}

/// Changes the imports of each object that imports a function named `mark`: redirects imported
/// functions to the addresses that `choose` returns.
pub(super) fn redirect(mark: &[u8], choose: Choose) {
    let mut search = Search { mark, choose };
    // SAFETY: `each` gets the pointer to `search`, which lives until the call returns. The dynamic
    // linker holds its lock meanwhile, so no object is unloaded.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
}

unsafe extern "C" fn each(info: *mut dl_phdr_info, _len: usize, search: *mut c_void) -> c_int {
    // SAFETY: the pointers are the dynamic linker's description of a mapped object, and our own
    // `Search`.
    unsafe {
        let search = &*search.cast::<Search<'_>>();
        if let Some(object) = Object::of(&*info) {
            object.redirect(search);
        }
    }
    0
}

/// An object, with the parts of its dynamic section that name imported functions.
struct Object<'a> {
    info: &'a dl_phdr_info,
    symbols: *const Symbol,
    strings: *const c_char,
    tables: [(*const Rela, usize); 2],
}

impl Object<'_> {
    /// # Safety
    /// `info` describes a mapped object.
    unsafe fn of(info: &dl_phdr_info) -> Option<Object<'_>> {
        if info.dlpi_phdr.is_null() {
            return None;
        }
        // SAFETY: these are the program headers of a mapped object.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC)?;
        let base = info.dlpi_addr as usize;
        let mut entry = at::<Dynamic>(base.wrapping_add(dynamic.p_vaddr as usize));
        let (mut symbols, mut strings) = (0, 0);
        let (mut places, mut lens) = ([0; 2], [0; 2]);
        loop {
            // SAFETY: the entries belong to a mapped dynamic section, whose last entry has tag 0.
            let Dynamic { tag, value } = unsafe { entry.read() };
            match tag {
                tag::NULL => break,
                tag::SYMBOLS => symbols = value,
                tag::STRINGS => strings = value,
                tag::RELA => places[0] = value,
                tag::RELA_LEN => lens[0] = value,
                tag::PLT => places[1] = value,
                tag::PLT_LEN => lens[1] = value,
                _ => {}
            }
            // SAFETY: the last entry has tag 0, so this is not the last.
            entry = unsafe { entry.add(1) };
        }
        // The dynamic linker adds the base to these values, except where it cannot write them (in
        // the vDSO).
        if symbols < base || strings < base || symbols == 0 || strings == 0 {
            return None;
        }
        let table = |i: usize| {
            let len = if places[i] < base || places[i] == 0 { 0 } else { lens[i] };
            (at::<Rela>(places[i]), len / size_of::<Rela>())
        };
        let (symbols, strings) = (at(symbols), at(strings));
        Some(Object { info, symbols, strings, tables: [table(0), table(1)] })
    }

    /// Returns the imported functions: the name of each, and the place of its address.
    fn imports(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.tables.iter().flat_map(move |&(table, len)| {
            let table = if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { table };
            // SAFETY: the table belongs to a mapped object, and has the length that the object
            // states.
            let entries = unsafe { slice::from_raw_parts(table, len) };
            entries.iter().filter_map(move |entry| {
                let (symbol, kind) = ((entry.info >> 32) as usize, entry.info as u32);
                if !matches!(kind, kind::GLOB_DAT | kind::JUMP_SLOT) {
                    return None;
                }
                // SAFETY: the symbol belongs to the object, and its name is a string of the object.
                let name = unsafe {
                    let symbol = &*self.symbols.add(symbol);
                    CStr::from_ptr(self.strings.add(symbol.name as usize))
                };
                let place = (self.info.dlpi_addr as usize).wrapping_add(entry.offset);
                Some((name.to_bytes(), place))
            })
        })
    }

    fn redirect(&self, search: &Search<'_>) {
        if !self.imports().any(|(name, _)| name == search.mark) {
            return;
        }
        for (name, place) in self.imports() {
            let Some(to) = (search.choose)(name) else { continue };
            if let Err(e) = self.change(place, to) {
                self.complain(name, e);
            }
        }
    }

    /// Changes the entry at `place`, even if its page is write-protected.
    fn change(&self, place: usize, to: usize) -> Result<(), Errno> {
        let entry = at::<AtomicUsize>(place);
        // SAFETY: the entry is aligned and in a mapped table. Other threads may call through it
        // meanwhile, and find either the old address or the new one.
        let entry = unsafe { &*entry };
        if entry.load(Ordering::Relaxed) == to {
            return Ok(());
        }
        // SAFETY: the call only asks for the size of a page.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let start = place & !(page - 1);
        let protect = |how| {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: this is the page of the entry, and it stays readable throughout.
            let done = unsafe { libc::mprotect(start, page, how) };
            if done == 0 { Ok(()) } else { Err(Errno::last()) }
        };
        protect(libc::PROT_READ | libc::PROT_WRITE)?;
        entry.store(to, Ordering::Release);
        if self.is_protected(place) { protect(libc::PROT_READ) } else { Ok(()) }
    }

    /// Returns true if the linker write-protects the page of `place` after relocation.
    fn is_protected(&self, place: usize) -> bool {
        // SAFETY: these are the program headers of a mapped object.
        let headers =
            unsafe { slice::from_raw_parts(self.info.dlpi_phdr, self.info.dlpi_phnum.into()) };
        headers.iter().filter(|h| h.p_type == libc::PT_GNU_RELRO).any(|h| {
            let start = (self.info.dlpi_addr as usize).wrapping_add(h.p_vaddr as usize);
            (start..start.wrapping_add(h.p_memsz as usize)).contains(&place)
        })
    }

    /// Reports once why programs will find no connection manager.
    fn complain(&self, name: &[u8], errno: Errno) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the name belongs to a mapped object; it is empty for the program itself.
            let object = unsafe { CStr::from_ptr(self.info.dlpi_name) }.to_string_lossy();
            let object = if object.is_empty() { "the program".into() } else { object };
            let name = String::from_utf8_lossy(name);
            eprintln!(
                "heddle: cannot redirect {name} in {object}: mprotect: {errno:?}; rdma_cm will find no \
                 device, because a security policy forbids to change the table of imported functions"
            );
        });
    }
}

/// Makes a pointer from an address that the dynamic linker states.
fn at<T>(address: usize) -> *const T {
    std::ptr::with_exposed_provenance(address)
}
