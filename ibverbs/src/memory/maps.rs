//! The mappings of this process, as the kernel reports them.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::sys::{self, Errno};

/// A line of the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// Addresses of the mapping, in whole pages.
    pub(super) range: Range<usize>,
    /// `PROT_READ` and so on.
    pub(super) protection: i32,
    pub(super) is_shared: bool,
    /// Offset in the file of the first byte.
    pub(super) offset: u64,
    /// The file: device and inode; both 0 without one.
    pub(super) file: (u64, u64),
    /// Bytes of a page: more than the machine's base page for hugepages. Kernels before 6.11 do not
    /// report it, and the field is 0.
    pub(super) page: usize,
}

/// The kernel's `procmap_query`, since Linux 6.11.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: usize = 0xc068_6611;
const _: () = assert!(size_of::<Query>() == 0x68);

/// Flag: find the mapping of an address, or else the next mapping.
const COVERING_OR_NEXT: u64 = 0x10;

/// All mappings, for look-ups by address.
#[derive(Debug)]
pub(super) struct Maps {
    file: File,
    /// On an older kernel, the mappings as read once.
    all: Option<Vec<Mapping>>,
}

impl Maps {
    /// Opens the list. The library opens it anew for each use, because a program may close
    /// descriptors that it does not know.
    ///
    /// # Errors
    /// Returns the errors of `open(2)`: the process has no `/proc`.
    pub(super) fn open() -> io::Result<Maps> {
        Ok(Maps { file: File::open("/proc/self/maps")?, all: None })
    }

    /// Returns the mapping that holds `addr`, or the next one after it.
    ///
    /// # Errors
    /// Returns the system's errors.
    pub(super) fn at_or_after(&mut self, addr: usize) -> io::Result<Option<Mapping>> {
        if self.all.is_none() {
            let mut query = Query {
                size: size_of::<Query>() as u64,
                flags: COVERING_OR_NEXT,
                addr: addr as u64,
                ..Query::default()
            };
            let args =
                [sys::fd(self.file.as_raw_fd()), PROCMAP_QUERY, (&raw mut query).addr(), 0, 0, 0];
            // SAFETY: the kernel fills in `query`, which is live and states its own size.
            match unsafe { sys::call(libc::SYS_ioctl, args) } {
                Ok(_) => return Ok(Some(query.into())),
                Err(Errno(libc::ENOENT)) => return Ok(None),
                Err(Errno(libc::ENOTTY | libc::EINVAL)) => self.all = Some(read(&self.file)?),
                Err(Errno(e)) => return Err(io::Error::from_raw_os_error(e)),
            }
        }
        let all = self.all.iter().flatten();
        Ok(all.into_iter().find(|m| m.range.end > addr).cloned())
    }

    /// Returns all mappings of a file.
    ///
    /// # Errors
    /// Returns the system's errors.
    pub(super) fn of_file(file: (u64, u64)) -> io::Result<Vec<Mapping>> {
        let all = read(&File::open("/proc/self/maps")?)?;
        Ok(all.into_iter().filter(|m| m.file == file).collect())
    }
}

impl From<Query> for Mapping {
    fn from(q: Query) -> Mapping {
        let address = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Mapping {
            range: address(q.start)..address(q.end),
            // The kernel's bits 0 to 2 equal PROT_READ, PROT_WRITE and PROT_EXEC.
            protection: i32::try_from(q.vma_flags & 7).unwrap_or(0),
            is_shared: q.vma_flags & 8 != 0,
            offset: q.offset,
            file: (libc::makedev(q.dev[0], q.dev[1]), q.inode),
            page: address(q.page_size),
        }
    }
}

/// Returns the name of the file that is mapped at an address, if it has one.
pub(super) fn name_at(address: usize) -> Option<PathBuf> {
    let mut text = Vec::new();
    io::Read::read_to_end(&mut File::open("/proc/self/maps").ok()?, &mut text).ok()?;
    let line = text.split(|b| *b == b'\n').find(|line| {
        let range =
            line.split(|b| *b == b' ').next().and_then(|word| std::str::from_utf8(word).ok());
        let ends = range.and_then(|range| range.split_once('-'));
        let hex = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        ends.is_some_and(|(start, end)| (hex(start)..hex(end)).contains(&address))
    })?;
    // The kernel writes five words before the name, and " (deleted)" after the name of a deleted
    // file.
    let at = line.iter().position(|b| *b == b'/')?;
    let name = &line[at..];
    (!name.ends_with(b" (deleted)")).then(|| OsString::from_vec(name.to_vec()).into())
}

fn read(mut file: &File) -> io::Result<Vec<Mapping>> {
    let mut text = String::new();
    io::Read::read_to_string(&mut file, &mut text)?;
    Ok(text.lines().filter_map(parse).collect())
}

/// Parses a line such as `7f00-7f10 rw-p 00001000 fe:01 123 /name`.
fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = |text| u32::from_str_radix(text, 16).ok();
    let inode = words.next()?.parse().ok()?;
    let bits = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
    let given = bits.iter().zip(rights).filter(|(_, letter)| **letter != b'-');
    Some(Mapping {
        range: address(start)?..address(end)?,
        protection: given.map(|(bit, _)| bit).sum(),
        is_shared: rights.get(3) == Some(&b's'),
        offset,
        file: (libc::makedev(device(major)?, device(minor)?), inode),
        page: 0,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_query_and_text_describe_the_same_mappings() {
        let memory = vec![1u8; 1 << 20];
        let on_stack = 0u8;
        let addresses = [
            memory.as_ptr().addr(),
            (&raw const on_stack).addr(),
            test_query_and_text_describe_the_same_mappings as fn() as usize,
        ];
        let text = read(&File::open("/proc/self/maps").unwrap()).unwrap();
        let mut maps = Maps::open().unwrap();
        for addr in addresses {
            let asked = maps.at_or_after(addr).unwrap().unwrap();
            assert!(asked.range.contains(&addr));
            let read = text.iter().find(|m| m.range.contains(&addr)).unwrap();
            assert_eq!((read.protection, read.is_shared), (asked.protection, asked.is_shared));
            assert_eq!((read.offset, read.file), (asked.offset, asked.file));
        }
        assert_eq!(maps.at_or_after(usize::MAX - 4095).unwrap(), None);
    }

    #[test]
    fn test_maps_line_with_and_without_a_name_is_parsed() {
        let line = "7f0000001000-7f0000003000 rw-s 0000f000 fe:01 77 /a b (deleted)";
        let want = Mapping {
            range: 0x7f00_0000_1000..0x7f00_0000_3000,
            protection: libc::PROT_READ | libc::PROT_WRITE,
            is_shared: true,
            offset: 0xf000,
            file: (libc::makedev(0xfe, 1), 77),
            page: 0,
        };
        assert_eq!(parse(line), Some(want));
        let line = "00400000-00401000 r-xp 00000000 00:00 0 ";
        assert_eq!(parse(line).map(|m| (m.protection, m.file)), Some((5, (0, 0))));
        assert_eq!(parse("nonsense"), None);
    }
}
