//! Formats a server's objects for people.

use std::fmt::Write;

use heddle::nfs::client::{Found, shown};
use heddle::nfs::wire::{Fattr, FileType, Time};

use super::place::Remote;
use super::session::Session;
use crate::cli::{Failure, say};

/// Lists a directory by name, or shows a single object that is no directory.
pub(super) fn list(session: &mut Session<'_>, found: &Found, long: bool) -> Result<(), Failure> {
    let mut entries: Vec<(Vec<u8>, Option<Fattr>)> = Vec::new();
    if found.attributes.kind == FileType::Directory {
        session.nfs.list(found.handle, |entry| {
            entries.push((entry.name.0.to_vec(), entry.attributes));
        })?;
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    } else {
        entries.push((session.path.clone(), Some(found.attributes)));
    }
    let mut text = String::new();
    for (name, attributes) in entries {
        if long {
            // A server may omit attributes that are expensive for it.
            let attributes = match attributes {
                Some(attributes) => attributes,
                None => session.nfs.lookup(found.handle, &name)?.attributes,
            };
            text.push_str(&line(&attributes));
            text.push(' ');
        }
        text.push_str(&shown(&name));
        text.push('\n');
    }
    say(&text);
    Ok(())
}

fn line(a: &Fattr) -> String {
    let (mode, time) = (mode(a), date(a.mtime));
    format!("{mode} {:>3} {:>5} {:>5} {:>12} {time}", a.nlink, a.uid, a.gid, a.size)
}

/// Formats all attributes, one per line.
pub(super) fn stat(of: &Remote, a: &Fattr, link: Option<&[u8]>) -> String {
    let mut text = format!("{of}\n");
    let mut put = |name: &str, value: &dyn std::fmt::Display| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<7} {value}");
    };
    put("kind", &kind(a.kind));
    if let Some(link) = link {
        put("to", &shown(link));
    }
    put("mode", &format!("{:04o} {}", a.mode & 0o7777, mode(a)));
    put("links", &a.nlink);
    put("owner", &format!("{} group {}", a.uid, a.gid));
    put("size", &format!("{} bytes, {} on disk", a.size, a.used));
    if matches!(a.kind, FileType::Block | FileType::Character) {
        put("device", &format!("{}:{}", a.rdev.major, a.rdev.minor));
    }
    put("fileid", &format!("{} of file system {:#x}", a.fileid, a.fsid));
    for (name, time) in [("read", a.atime), ("written", a.mtime), ("changed", a.ctime)] {
        put(name, &format!("{}.{:09} UTC", date(time), time.nanoseconds));
    }
    text
}

const fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Block => "block device",
        FileType::Character => "character device",
        FileType::Symlink => "symbolic link",
        FileType::Socket => "socket",
        FileType::Fifo => "named pipe",
    }
}

/// Formats kind and permissions as ls(1) does.
fn mode(a: &Fattr) -> String {
    let mut text = String::from(match a.kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Block => 'b',
        FileType::Character => 'c',
        FileType::Symlink => 'l',
        FileType::Socket => 's',
        FileType::Fifo => 'p',
    });
    for (shift, special, set) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = a.mode >> shift;
        text.push(if bits & 4 > 0 { 'r' } else { '-' });
        text.push(if bits & 2 > 0 { 'w' } else { '-' });
        text.push(match (a.mode & special > 0, bits & 1 > 0) {
            (false, true) => 'x',
            (false, false) => '-',
            (true, true) => set,
            (true, false) => set.to_ascii_uppercase(),
        });
    }
    text
}

/// Formats a UTC time in the Gregorian calendar.
fn date(time: Time) -> String {
    let (days, second) = (time.seconds / 86_400, time.seconds % 86_400);
    // Years begin in March here, so that the leap day is a year's last day. The count starts at the
    // year 0, which began 719468 days before 1970.
    let days = u64::from(days) + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Every five months from March on have 153 days together.
    let march = (5 * day + 2) / 153;
    let day = day - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = 400 * era + year + u64::from(month < 3);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_dates_are_right_at_turns_of_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00"),
            (68_169_599, "1972-02-28 23:59:59"),
            (68_169_600, "1972-02-29 00:00:00"),
            (68_256_000, "1972-03-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_735_689_599, "2024-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (u32::MAX, "2106-02-07 06:28:15"),
        ] {
            assert_eq!(date(Time { seconds, nanoseconds: 0 }), want);
        }
    }

    #[test]
    fn test_mode_is_shown_as_by_ls() {
        let of = |kind, mode| {
            let zero = Time::default();
            let (nlink, uid, gid, size, used) = (1, 0, 0, 0, 0);
            let (rdev, fsid, fileid) = (heddle::nfs::wire::Device::default(), 0, 0);
            let times = (zero, zero, zero);
            let (atime, mtime, ctime) = times;
            super::mode(&Fattr {
                kind,
                mode,
                nlink,
                uid,
                gid,
                size,
                used,
                rdev,
                fsid,
                fileid,
                atime,
                mtime,
                ctime,
            })
        };
        assert_eq!(of(FileType::Regular, 0o644), "-rw-r--r--");
        assert_eq!(of(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(of(FileType::Regular, 0o4755), "-rwsr-xr-x");
        assert_eq!(of(FileType::Fifo, 0o2640), "prw-r-S---");
    }
}
