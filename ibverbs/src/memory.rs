//! Memory that the program has already, made shared with the RNIC in place.

use std::sync::Arc;

use heddle_verbs::Region;

/// Memory that is shared while this lives.
#[derive(Clone, Debug)]
pub struct Shared {
    region: Arc<Region>,
    offset: usize,
}

impl Shared {
    /// The region that it lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where in it, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

/// Stand-in: whole pages are moved into a shared file and mapped over, for ever.
///
/// # Errors
/// An errno.
pub fn share(addr: usize, len: usize) -> Result<Shared, i32> {
    use std::os::fd::AsRawFd;
    use std::sync::Mutex;
    static ALL: Mutex<Vec<(usize, Arc<Region>)>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (first, end) = (addr & !4095, (addr + len).next_multiple_of(4096));
    if let Some((base, region)) =
        all.iter().find(|(base, region)| *base <= first && end <= base + region.len())
    {
        return Ok(Shared { region: region.clone(), offset: addr - base });
    }
    let region = Arc::new(Region::shared(end - first).map_err(|_| libc::ENOMEM)?);
    let fd = region.fd().ok_or(libc::EIO)?.as_raw_fd();
    // SAFETY: a stand-in for single-threaded trials: pages of the program are copied and mapped over.
    unsafe {
        let from = std::ptr::with_exposed_provenance::<u8>(first);
        std::ptr::copy(from, region.base().as_ptr(), end - first);
        let at = std::ptr::with_exposed_provenance_mut(first);
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        if libc::mmap(at, end - first, 3, how, fd, 0) == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
    }
    all.push((first, region.clone()));
    Ok(Shared { region, offset: addr - first })
}
