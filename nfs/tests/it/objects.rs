//! Procedures report objects as the file system has them.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::common::{Lab, mode, time};
use heddle_nfs::Options;
use heddle_nfs::wire::{
    Access, AccessOk, Fattr, FileType, Fsinfo, Fsstat, Handle, OfHandle, Pathconf, ReadlinkOk,
    Sattr, SetTime, Setattr, Status, Time, WccData, procedure,
};

fn same(attributes: &Fattr, metadata: &fs::Metadata) {
    assert_eq!(attributes.mode, metadata.mode() & 0o7777);
    assert_eq!(u64::from(attributes.nlink), metadata.nlink());
    assert_eq!((attributes.uid, attributes.gid), (metadata.uid(), metadata.gid()));
    assert_eq!((attributes.size, attributes.used), (metadata.size(), metadata.blocks() * 512));
    assert_eq!(attributes.fileid, metadata.ino());
    assert_eq!(attributes.mtime, time(metadata.modified().unwrap()));
    assert_eq!(i64::from(attributes.ctime.seconds), metadata.ctime());
    let kind = metadata.file_type();
    let is = (kind.is_file(), kind.is_dir(), kind.is_symlink());
    let said = attributes.kind;
    assert_eq!(
        is,
        (said == FileType::Regular, said == FileType::Directory, said == FileType::Symlink)
    );
}

#[test]
fn test_getattr_and_lookup_match_the_file_system() {
    let lab = Lab::new();
    fs::create_dir(lab.path("dir")).unwrap();
    fs::write(lab.path("dir/file"), b"12345").unwrap();
    symlink("dir/file", lab.path("link")).unwrap();
    for path in ["", "dir", "dir/file", "link"] {
        let metadata = fs::symlink_metadata(lab.path(path)).unwrap();
        same(&lab.getattr(lab.handle(path)).unwrap(), &metadata);
    }
    let found = lab.lookup(lab.root(), b"dir").unwrap();
    same(&found.attributes.unwrap(), &fs::metadata(lab.path("dir")).unwrap());
    same(&found.dir.unwrap(), &fs::metadata(lab.path("")).unwrap());
}

#[test]
fn test_lookup_handles_dots_and_refuses_invalid_names() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("a/b")).unwrap();
    fs::write(lab.path("file"), b"").unwrap();
    let root = lab.root();
    let b = lab.handle("a/b");
    assert_eq!(lab.lookup(b, b".").unwrap().object, b);
    assert_eq!(lab.lookup(b, b"..").unwrap().object, lab.handle("a"));
    assert_eq!(lab.lookup(root, b"..").unwrap().object, root, "there is nothing above");
    let long = [b'x'; 256];
    for (name, status) in [
        (&b"nowhere"[..], Status::NOENT),
        (b"", Status::INVAL),
        (b"a/b", Status::INVAL),
        (b"../outside", Status::INVAL),
        (b"/", Status::INVAL),
        (b"file\0", Status::INVAL),
        (&long, Status::NAMETOOLONG),
        (&long[..255], Status::NOENT),
    ] {
        assert_eq!(lab.lookup(root, name).unwrap_err(), status, "{name:?}");
    }
    assert_eq!(lab.lookup(lab.handle("file"), b"x").unwrap_err(), Status::NOTDIR);
}

#[test]
fn test_symbolic_links_are_not_followed() {
    let lab = Lab::new();
    let outside = lab.base.path().join("outside");
    symlink(&outside, lab.path("out")).unwrap();
    symlink(outside.join("secret"), lab.path("secret")).unwrap();
    let out = lab.lookup(lab.root(), b"out").unwrap();
    assert_eq!(out.attributes.unwrap().kind, FileType::Symlink);
    assert_eq!(lab.lookup(out.object, b"secret").unwrap_err(), Status::NOTDIR);
    let secret = lab.handle("secret");
    assert_eq!(lab.read(secret, 0, 100).unwrap_err(), Status::INVAL);
    assert_eq!(lab.write(secret, 0, b"x").unwrap_err(), Status::INVAL);
    let call = OfHandle { object: secret };
    let link: ReadlinkOk<'_> = lab.call::<_, Option<Fattr>>(procedure::READLINK, &call).unwrap();
    assert_eq!(link.path.0, outside.join("secret").to_str().unwrap().as_bytes());
    let call = OfHandle { object: lab.root() };
    let status = lab.refused::<ReadlinkOk<'_>, Option<Fattr>>(procedure::READLINK, &call);
    assert_eq!(status, Status::INVAL);
    // SETATTR changes the link, never the object to which it leads.
    let before = fs::metadata(outside.join("secret")).unwrap();
    set(&lab, secret, mode(0o777)).unwrap_err();
    let times =
        Sattr { mtime: SetTime::Client(Time { seconds: 5, nanoseconds: 0 }), ..Sattr::default() };
    set(&lab, secret, times).unwrap();
    let after = fs::metadata(outside.join("secret")).unwrap();
    assert_eq!(before.mode(), after.mode());
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    assert_eq!(fs::symlink_metadata(lab.path("secret")).unwrap().mtime(), 5);
}

fn set(lab: &Lab, object: Handle, attributes: Sattr) -> Result<WccData, (Status, WccData)> {
    lab.call(procedure::SETATTR, &Setattr { object, attributes, guard: None })
}

#[test]
fn test_setattr_sets_each_attribute_and_no_other() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"12345").unwrap();
    let f = lab.handle("f");
    let at = |seconds| SetTime::Client(Time { seconds, nanoseconds: 7 });
    set(&lab, f, Sattr { atime: at(1000), mtime: at(2000), ..Sattr::default() }).unwrap();
    let m = fs::metadata(lab.path("f")).unwrap();
    assert_eq!((m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec()), (1000, 7, 2000, 7));
    set(&lab, f, mode(0o640)).unwrap();
    let wcc = set(&lab, f, Sattr { size: Some(2), mtime: at(3000), ..Sattr::default() }).unwrap();
    assert_eq!((wcc.before.unwrap().size, wcc.after.unwrap().size), (5, 2));
    let m = fs::metadata(lab.path("f")).unwrap();
    assert_eq!((m.mode() & 0o7777, m.mtime(), m.atime()), (0o640, 3000, 1000));
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"12");
    // The user and group that the file already has.
    set(&lab, f, Sattr { uid: Some(m.uid()), gid: Some(m.gid()), ..Sattr::default() }).unwrap();
    set(&lab, f, Sattr { size: Some(9), mtime: SetTime::Server, ..Sattr::default() }).unwrap();
    let m = fs::metadata(lab.path("f")).unwrap();
    assert!(m.size() == 9 && m.mtime() > 1_000_000_000);
    let status = |object, attributes| set(&lab, object, attributes).unwrap_err().0;
    let size = |size| Sattr { size: Some(size), ..Sattr::default() };
    assert_eq!(status(f, size(u64::MAX)), Status::FBIG);
    assert_eq!(status(lab.root(), size(0)), Status::ISDIR);
    assert_eq!(status(f, Sattr { uid: Some(u32::MAX), ..Sattr::default() }), Status::INVAL);
}

#[test]
fn test_setattr_drops_set_id_bits_that_give_rights_away() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"").unwrap();
    fs::create_dir(lab.path("d")).unwrap();
    set(&lab, lab.handle("f"), mode(0o7755)).unwrap();
    set(&lab, lab.handle("d"), mode(0o7755)).unwrap();
    let bits = |name| fs::metadata(lab.path(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((bits("f"), bits("d")), (0o1755, 0o3755));
}

#[test]
fn test_setattr_guard_refuses_object_changed_since() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"").unwrap();
    let object = lab.handle("f");
    let ctime = lab.getattr(object).unwrap().ctime;
    let guard = Some(Time { seconds: ctime.seconds - 1, nanoseconds: ctime.nanoseconds });
    let call = Setattr { object, attributes: mode(0o600), guard };
    let status = lab.refused::<WccData, WccData>(procedure::SETATTR, &call);
    assert_eq!(status, Status::NOT_SYNC);
    let call = Setattr { guard: Some(ctime), ..call };
    lab.call::<WccData, WccData>(procedure::SETATTR, &call).unwrap();
    assert_eq!(lab.getattr(object).unwrap().mode, 0o600);
}

#[test]
fn test_access_reports_what_the_server_may_do() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"").unwrap();
    fs::set_permissions(lab.path("f"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(lab.path("x"), b"").unwrap();
    fs::set_permissions(lab.path("x"), fs::Permissions::from_mode(0o755)).unwrap();
    let access = |lab: &Lab, name, access| {
        let call = Access { object: lab.handle(name), access };
        lab.call::<AccessOk, Option<Fattr>>(procedure::ACCESS, &call).unwrap().access
    };
    assert_eq!(access(&lab, "f", 0x3f), 1 | 4 | 8);
    assert_eq!(access(&lab, "x", 0x3f), 1 | 4 | 8 | 0x20);
    assert_eq!(access(&lab, "", 0x3f), 1 | 2 | 4 | 8 | 0x10);
    assert_eq!(access(&lab, "", 2), 2, "only what was asked for");
    let lab = Lab::with(Options { read_only: true, ..Options::default() });
    fs::write(lab.path("f"), b"").unwrap();
    assert_eq!((access(&lab, "", 0x3f), access(&lab, "f", 0x1f)), (1 | 2, 1));
}

#[test]
fn test_fsstat_fsinfo_and_pathconf_describe_the_file_system() {
    let lab = Lab::new();
    let call = OfHandle { object: lab.root() };
    let stat: Fsstat = lab.call::<_, Option<Fattr>>(procedure::FSSTAT, &call).unwrap();
    let real = rustix::fs::statvfs(lab.path("")).unwrap();
    assert_eq!(stat.total_bytes, real.f_blocks * real.f_frsize);
    assert_eq!(stat.total_files, real.f_files);
    assert!(stat.free_bytes <= stat.total_bytes && stat.available_bytes <= stat.free_bytes);
    let info: Fsinfo = lab.call::<_, Option<Fattr>>(procedure::FSINFO, &call).unwrap();
    assert_eq!((info.rtmax, info.wtmax, info.properties), (1 << 20, 1 << 20, 0x1b));
    assert_eq!(info.maxfilesize, i64::MAX as u64);
    let conf: Pathconf = lab.call::<_, Option<Fattr>>(procedure::PATHCONF, &call).unwrap();
    assert_eq!((conf.name_max, conf.no_trunc, conf.case_insensitive), (255, true, false));
}
