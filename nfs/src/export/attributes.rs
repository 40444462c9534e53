//! Attributes of the file system as those of the protocol, and back.

use rustix::fs::{FileType as Kind, Statx, StatxTimestamp, Timespec, UTIME_NOW, UTIME_OMIT};

use crate::wire::{Device, Fattr, FileType, SetTime, Time};

/// Bits of a mode that are permissions, set-user-ID, set-group-ID or sticky.
const MODE: u32 = 0o7777;

/// Times before 1970 are that, and those after 2106 that.
fn time(t: &StatxTimestamp) -> Time {
    if t.tv_sec < 0 {
        return Time::default();
    }
    Time { seconds: u32::try_from(t.tv_sec).unwrap_or(u32::MAX), nanoseconds: t.tv_nsec }
}

/// `None` for what no type of the protocol is.
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

/// Attributes of an object in the file system that clients know as `fsid`.
pub(crate) fn fattr(stat: &Statx, fsid: u64) -> Option<Fattr> {
    Some(Fattr {
        kind: kind(stat.stx_mode)?,
        mode: u32::from(stat.stx_mode) & MODE,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        // Blocks are of 512 octets, whatever the file system has.
        used: stat.stx_blocks.saturating_mul(512),
        rdev: Device { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor },
        fsid,
        fileid: stat.stx_ino,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
    })
}

/// A time to be set.
pub(crate) fn timespec(set: SetTime) -> Timespec {
    match set {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Server => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::Client(t) => {
            Timespec { tv_sec: t.seconds.into(), tv_nsec: t.nanoseconds.min(999_999_999).into() }
        }
    }
}
