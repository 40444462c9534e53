//! READDIR and READDIRPLUS.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::common::Lab;
use heddle_nfs::wire::{
    DirPlus, DirPlusEntry, Fattr, Handle, Readdir, Readdirplus, Status, Verifier, Xdr, procedure,
};
use heddle_rpcrdma::xdr::Reader;

/// An entry of READDIR: number, name, cookie.
type Entry = (u64, Vec<u8>, u64);

/// Returns the entries, whether they were the last, and the number of bytes after the status.
fn readdir(
    lab: &Lab,
    dir: Handle,
    cookie: u64,
    count: u32,
) -> Result<(Vec<Entry>, bool, usize), Status> {
    let call = Readdir { dir, cookie, verifier: Verifier::default(), count };
    let (results, _) = lab.results(procedure::READDIR, &call.bytes());
    let mut r = Reader::new(results);
    let status = Status::get(&mut r).unwrap();
    let _: Option<Fattr> = Xdr::get(&mut r).unwrap();
    if status != Status::OK {
        r.finish().unwrap();
        return Err(status);
    }
    assert_eq!(Verifier::get(&mut r).unwrap(), Verifier::default());
    let mut entries = Vec::new();
    while r.flag().unwrap() {
        let fileid = r.u64().unwrap();
        entries.push((fileid, r.opaque(255).unwrap().to_vec(), r.u64().unwrap()));
    }
    let eof = r.flag().unwrap();
    r.finish().unwrap();
    Ok((entries, eof, results.len() - 4))
}

fn plus(
    lab: &Lab,
    dir: Handle,
    cookie: u64,
    limits: (u32, u32),
) -> Result<(DirPlus<'static>, usize), Status> {
    let (dircount, maxcount) = limits;
    let call = Readdirplus { dir, cookie, verifier: Verifier::default(), dircount, maxcount };
    let (results, _) = lab.results(procedure::READDIRPLUS, &call.bytes());
    Result::<DirPlus<'_>, (Status, Option<Fattr>)>::whole(results)
        .unwrap()
        .map(|d| (d, results.len() - 4))
        .map_err(|(status, _)| status)
}

fn fill(lab: &Lab, count: usize) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::from([b".".to_vec(), b"..".to_vec()]);
    for i in 0..count {
        let name = format!("{i:0width$}", width = 1 + i % 200);
        fs::write(lab.path(&name), b"x").unwrap();
        all.insert(name.into_bytes());
    }
    all
}

#[test]
fn test_every_entry_comes_once_in_parts_of_any_size() {
    let lab = Lab::new();
    let all = fill(&lab, 700);
    let root = lab.root();
    for count in [400, 1000, 8192, 1 << 20, u32::MAX] {
        let (mut cookie, mut seen, mut parts) = (0, Vec::new(), 0);
        loop {
            let (entries, eof, len) = readdir(&lab, root, cookie, count).unwrap();
            assert!(len <= count as usize, "{len} {count}");
            cookie = entries.last().unwrap().2;
            seen.extend(entries);
            parts += 1;
            if eof {
                break;
            }
        }
        assert_eq!(seen.len(), all.len(), "{count}");
        assert_eq!(seen.iter().map(|e| e.1.clone()).collect::<BTreeSet<_>>(), all);
        assert_eq!(parts == 1, count > 200_000, "{count} {parts}");
        for (fileid, name, _) in seen.iter().step_by(50) {
            let path = lab.path(std::str::from_utf8(name).unwrap());
            if name != b".." {
                assert_eq!(*fileid, fs::metadata(path).unwrap().ino());
            }
        }
    }
}

#[test]
fn test_entries_come_with_attributes_and_handles() {
    let lab = Lab::new();
    let all = fill(&lab, 300);
    fs::create_dir(lab.path("dir")).unwrap();
    let root = lab.root();
    for limits in [(600, 2000), (8192, 32768), (100, 1 << 20)] {
        let (mut cookie, mut seen) = (0, 0);
        loop {
            let (part, len) = plus(&lab, root, cookie, limits).unwrap();
            assert!(len <= limits.1 as usize, "{len} {limits:?}");
            for DirPlusEntry { fileid, name, attributes, handle, .. } in &part.entries {
                seen += 1;
                if name.0 == b".." {
                    assert_eq!((*fileid, *handle), (lab.getattr(root).unwrap().fileid, None));
                    continue;
                }
                assert!(all.contains(name.0) || name.0 == b"dir");
                let (attributes, handle) = (attributes.unwrap(), handle.unwrap());
                assert_eq!(attributes.fileid, *fileid);
                assert_eq!(lab.lookup(root, name.0).unwrap().object, handle);
                // A listing reads the directory, so it changes the access time.
                let now = Fattr { atime: attributes.atime, ..lab.getattr(handle).unwrap() };
                assert_eq!(now, attributes);
            }
            cookie = part.entries.last().unwrap().cookie;
            if part.eof {
                break;
            }
        }
        assert_eq!(seen, all.len() + 1, "{limits:?}");
    }
}

#[test]
fn test_cookies_stay_valid_while_entries_come_and_go() {
    let lab = Lab::new();
    let all = fill(&lab, 600);
    let root = lab.root();
    let (first, eof, _) = readdir(&lab, root, 0, 4096).unwrap();
    assert!(!eof);
    let mut seen: Vec<_> = first.iter().map(|e| e.1.clone()).collect();
    let mut cookie = first.last().unwrap().2;
    let mut removed = 0;
    let mut round = 0;
    loop {
        // The entries seen so far go, as with `rm -r`, and others come.
        for name in seen.iter().filter(|n| !n.starts_with(b".")) {
            let path = lab.path(std::str::from_utf8(name).unwrap());
            removed += usize::from(fs::remove_file(path).is_ok());
        }
        fs::write(lab.path(&format!("new{round}")), b"").unwrap();
        round += 1;
        let (entries, eof, _) = readdir(&lab, root, cookie, 4096).unwrap();
        seen.extend(entries.iter().map(|e| e.1.clone()));
        cookie = entries.last().map_or(cookie, |e| e.2);
        if eof {
            break;
        }
    }
    let old: Vec<_> = seen.iter().filter(|n| !n.starts_with(b"new")).collect();
    assert_eq!(old.len(), all.len(), "each of the old ones once");
    assert!(removed > 300 && old.iter().all(|n| all.contains(*n)));
}

#[test]
fn test_listing_refuses_small_counts_bad_cookies_and_files() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"").unwrap();
    let root = lab.root();
    for count in [0, 50, 111] {
        assert_eq!(readdir(&lab, root, 0, count).unwrap_err(), Status::TOOSMALL, "{count}");
        assert_eq!(plus(&lab, root, 0, (count, count)).unwrap_err(), Status::TOOSMALL);
    }
    assert_eq!(readdir(&lab, root, u64::MAX, 4096).unwrap_err(), Status::BAD_COOKIE);
    assert_eq!(readdir(&lab, lab.handle("f"), 0, 4096).unwrap_err(), Status::NOTDIR);
    let call = Readdir { dir: root, cookie: 5, verifier: Verifier([1; 8]), count: 4096 };
    let (results, _) = lab.results(procedure::READDIR, &call.bytes());
    assert_eq!(Status::get(&mut Reader::new(results)).unwrap(), Status::BAD_COOKIE);
}
