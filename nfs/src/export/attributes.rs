//! Conversion between attributes of the file system and attributes of the protocol.

use rustix::fs::{FileType as Kind, Statx, StatxTimestamp, Timespec, UTIME_NOW, UTIME_OMIT};

use crate::wire::{Device, Fattr, FileType, SetTime, Time};

/// The bits of a mode for permissions, set-user-ID, set-group-ID and sticky.
const MODE: u32 = 0o7777;

/// Clamps times before 1970 to 1970, and times after 2106 to 2106.
fn time(t: &StatxTimestamp) -> Time {
    if t.tv_sec < 0 {
        return Time::default();
    }
    Time { seconds: u32::try_from(t.tv_sec).unwrap_or(u32::MAX), nanoseconds: t.tv_nsec }
}

/// Returns `None` for an object whose type the protocol does not have.
fn kind(mode: u16) -> Option<FileType> {
    let kind = Kind::from_raw_mode(mode.into());
    Some(match kind {
        Kind::RegularFile => FileType::Regular,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::Character,
        Kind::BlockDevice => FileType::Block,
        _ => return None,
    })
}

/// Returns the attributes of an object in the file system that clients know as `fsid`.
pub(crate) fn fattr(stat: &Statx, fsid: u64) -> Option<Fattr> {
    Some(Fattr {
        kind: kind(stat.stx_mode)?,
        mode: u32::from(stat.stx_mode) & MODE,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        // Linux counts blocks of 512 bytes, whatever the block size of the file system is.
        used: stat.stx_blocks.saturating_mul(512),
        rdev: Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor },
        fsid,
        fileid: stat.stx_ino,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
    })
}

/// Converts a time that a client sets.
pub(crate) fn timespec(set: SetTime) -> Timespec {
    match set {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Server => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::Client(t) => {
            Timespec { tv_sec: t.seconds.into(), tv_nsec: t.nanoseconds.min(999_999_999).into() }
        }
    }
}
