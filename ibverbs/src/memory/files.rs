//! Memory that a program shares with others: pages of a file in memory, which the RNIC maps as
//! well.
//!
//! The module cannot replace such pages, because other processes go on using them. The RNIC gets
//! the file itself instead: by a descriptor that the program has open for reading and writing, or
//! by the name under which the program mapped the file. The module converts nothing and gives
//! nothing back: a child of `fork` shares the pages as before.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};

use heddle_socket::descriptor::aside;
use heddle_verbs::Region;
use libc::{EFAULT, EOPNOTSUPP};

use super::maps::{self, Maps};
use super::{Refusal, convert};

/// Registered files, by device and inode, with their length in bytes.
pub(super) type Known = Vec<((u64, u64), usize, Weak<Region>)>;

/// A part of a file.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) region: Arc<Region>,
    /// Offset of the first page in the file.
    pub(super) offset: usize,
    pub(super) is_writable: bool,
}

/// Finds the part of a file that the given whole pages of the program map.
///
/// # Errors
/// Returns EOPNOTSUPP if the pages map no file in memory that the RNIC can be given; EFAULT if the
/// program may not read them.
pub(super) fn share(known: &mut Known, pages: &Range<usize>) -> Result<Part, Refusal> {
    let unsupported =
        |why: &str| Refusal::new(EOPNOTSUPP, format!("the memory at {:#x} {why}", pages.start));
    let mut maps = Maps::open().map_err(|e| unsupported(&format!("is not known: {e}")))?;
    let (mut shown, mut is_writable) = (None, true);
    let mut at = pages.start;
    while at < pages.end {
        let found = maps.at_or_after(at).ok().flatten().filter(|m| m.range.contains(&at));
        let mapping =
            found.ok_or_else(|| Refusal::new(EFAULT, format!("nothing is mapped at {at:#x}")))?;
        if mapping.protection & libc::PROT_READ == 0 {
            return Err(Refusal::new(EFAULT, format!("the memory at {at:#x} may not be read")));
        }
        is_writable &= mapping.protection & libc::PROT_WRITE != 0;
        // The address at which the file would begin. Neighbouring mappings that agree on it map one
        // stretch of one file.
        let start = (mapping.range.start as u64).wrapping_sub(mapping.offset);
        let here = (mapping.is_shared, mapping.file, start);
        if !mapping.is_shared || shown.is_some_and(|before| before != here) {
            return Err(unsupported(
                "is private in one part and shared in another, or of two files",
            ));
        }
        shown = Some(here);
        at = mapping.range.end;
    }
    let Some((_, file, start)) = shown else { return Err(unsupported("has no pages")) };
    let offset = usize::try_from((pages.start as u64).wrapping_sub(start));
    let offset = offset.map_err(|_| unsupported("is too far in its file"))?;
    let region =
        region(known, file, pages.start, offset.saturating_add(pages.len())).map_err(|why| {
            unsupported(&format!("is shared with other processes (MAP_SHARED), and {why}"))
        })?;
    // Populate the pages, because the RNIC maps only existing ones.
    convert::populate(pages.start, pages.len());
    Ok(Part { region, offset, is_writable })
}

/// Returns the region of a file, up to byte `end` at least, or to the end of the file.
fn region(
    known: &mut Known,
    id: (u64, u64),
    address: usize,
    end: usize,
) -> Result<Arc<Region>, String> {
    known.retain(|(_, _, region)| region.strong_count() > 0);
    let found = known.iter().find(|(file, len, _)| *file == id && *len >= end);
    if let Some(region) = found.and_then(|(_, _, region)| region.upgrade()) {
        return Ok(region);
    }
    let fd = open_descriptor(id).or_else(|| by_name(id, address));
    let fd = fd.ok_or("the program has no descriptor of its file open for reading and writing")?;
    let len = File::from(fd.try_clone().map_err(|e| e.to_string())?).metadata();
    let len = usize::try_from(len.map_err(|e| e.to_string())?.len()).map_err(|e| e.to_string())?;
    let region = Arc::new(Region::of_file(fd, len).map_err(|e| e.to_string())?);
    known.push((id, len, Arc::downgrade(&region)));
    Ok(region)
}

/// Copies one of the program's descriptors of the file.
fn open_descriptor(id: (u64, u64)) -> Option<OwnedFd> {
    let all = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers: Vec<RawFd> =
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    numbers.into_iter().find_map(|number| {
        // SAFETY: by now the number may belong to another file, or to none; `is_file` below then
        // rejects the copy.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let copy = fd.try_clone_to_owned().ok()?;
        is_file(&copy, id).then(|| aside(copy))
    })
}

/// Opens the file by the name under which the program mapped it.
fn by_name(id: (u64, u64), address: usize) -> Option<OwnedFd> {
    let name = maps::name_at(address)?;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let fd = OwnedFd::from(options.open(name).ok()?);
    is_file(&fd, id).then(|| aside(fd))
}

/// Returns true if the descriptor is open on the file, for reading and writing.
fn is_file(fd: &OwnedFd, id: (u64, u64)) -> bool {
    let how = rustix::fs::fcntl_getfl(fd.as_fd());
    let both = how.is_ok_and(|how| how & rustix::fs::OFlags::ACCMODE == rustix::fs::OFlags::RDWR);
    let found = rustix::fs::fstat(fd.as_fd());
    both && found.is_ok_and(|found| (found.st_dev, found.st_ino) == id)
}
