//! Several exports of one service: each call keeps to the rules of the export that its handle
//! names.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Lab, message, names};
use heddle_nfs::wire::{
    Created, DirEntryName, DirPlus, DirPlusEntry, Fattr, Handle, How, Link, LinkDone, Mkdir,
    OfHandle, Opaque, Readdirplus, Remove, Rename, RenameDone, Sattr, Setattr, Stable, Status,
    Symlink, Verifier, WccData, Write, Xdr, mount, procedure,
};
use heddle_nfs::{Access, Options, Service, Share, SharesError, Squash};
use heddle_rpcrdma::rpc::{Auth, AuthStat, Denied, Procedure, Reply, ReplyBody};
use heddle_rpcrdma::xdr::Reader;

const OPTIONS: fn() -> Options = || Options { sync: false, ..Options::default() };

/// Returns an export of a directory of the lab, by the given name.
fn share(lab: &Lab, dir: &str, path: &str) -> Arc<Share> {
    Share::new(&lab.path(dir), path, OPTIONS()).unwrap()
}

/// Makes a lab with these directories, and exports them.
fn lab(exports: &[(&str, &str)]) -> Lab {
    let mut lab = Lab::new();
    exports.iter().for_each(|(dir, _)| fs::create_dir_all(lab.path(dir)).unwrap());
    lab.service = Arc::new(Service::of(shares(&lab, exports)).unwrap());
    lab
}

fn serve(lab: &Lab, exports: &[(&str, &str)]) {
    lab.service.set_shares(shares(lab, exports)).unwrap();
}

fn shares(lab: &Lab, exports: &[(&str, &str)]) -> Vec<Arc<Share>> {
    exports.iter().map(|(dir, path)| share(lab, dir, path)).collect()
}

fn mnt(lab: &Lab, path: &str) -> Result<Handle, Status> {
    let path = Opaque::<4095>(path.as_bytes());
    let mounted = lab.call::<mount::Mounted, ()>(mount::MNT, &path);
    mounted.map(|mounted| mounted.handle).map_err(|(status, ())| status)
}

fn at(dir: Handle, name: &str) -> DirEntryName<'_> {
    DirEntryName { dir, name: Opaque(name.as_bytes()) }
}

fn create(lab: &Lab, dir: Handle, name: &str) -> Result<Handle, Status> {
    let made = lab.create(dir, name.as_bytes(), How::Guarded(Sattr::default()));
    made.map(|made| made.object.unwrap()).map_err(|(status, _)| status)
}

fn rename(lab: &Lab, from: DirEntryName<'_>, to: DirEntryName<'_>) -> Status {
    let done = lab.call::<RenameDone, RenameDone>(procedure::RENAME, &Rename { from, to });
    done.map_or_else(|(status, _)| status, |_| Status::OK)
}

fn link(lab: &Lab, file: Handle, at: DirEntryName<'_>) -> Status {
    let done = lab.call::<LinkDone, LinkDone>(procedure::LINK, &Link { file, at });
    done.map_or_else(|(status, _)| status, |_| Status::OK)
}

/// Returns the result of GETATTR after the server has had time to search.
fn patient(lab: &Lab, handle: Handle) -> Result<Fattr, Status> {
    let start = Instant::now();
    loop {
        match lab.getattr(handle) {
            Err(Status::JUKEBOX) if start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            said => return said,
        }
    }
}

/// Returns a handle of the object `of` that claims to belong to the export of `like`.
fn forged(like: Handle, of: Handle) -> Handle {
    let mut bytes = of.as_slice().to_vec();
    bytes[4..12].copy_from_slice(&like.as_slice()[4..12]);
    Handle::new(&bytes).unwrap()
}

#[test]
fn test_path_is_mounted_from_the_export_with_the_longest_name() {
    let lab = lab(&[("a", "/srv"), ("b", "/srv/b"), ("c", "/srv/b/c")]);
    for path in ["a/b", "a/x", "b/x/y", "b/cc", "c/x"] {
        fs::create_dir_all(lab.path(path)).unwrap();
    }
    let ino = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(lab.path(path)).unwrap().ino()
    };
    for (path, dir) in [
        ("/srv", "a"),
        ("/srv/", "a"),
        ("//srv//x/.", "a/x"),
        ("/srv/b", "b"),
        ("/srv/b/x/y", "b/x/y"),
        ("/srv/b/cc", "b/cc"),
        ("/srv/b/c", "c"),
        ("/srv/b/c/x", "c/x"),
    ] {
        let root = mnt(&lab, path).unwrap();
        assert_eq!(lab.getattr(root).unwrap().fileid, ino(dir), "{path}");
    }
    for missing in ["/", "", "/x", "/srvb", "/srv/b/z", "/srv/b/c/x/y"] {
        assert_eq!(mnt(&lab, missing), Err(Status::NOENT), "{missing}");
    }
    serve(&lab, &[("b", "/srv/b")]);
    let root = mnt(&lab, "/srv/b").unwrap();
    assert_eq!((mnt(&lab, "/"), mnt(&lab, "/x")), (Ok(root), mnt(&lab, "/srv/b/x")));
}

/// Calls EXPORT, as `showmount -e` does.
#[test]
fn test_list_has_every_export_with_its_own_clients() {
    let lab = lab(&[("a", "/srv/a"), ("b", "/srv/b")]);
    let clients = vec!["10.1.0.0/16".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    lab.service.shares()[1].set_access(Access { clients, ..Access::default() }).unwrap();
    let (results, _) = lab.results(mount::EXPORT, &[]);
    let listed = mount::list::<mount::Exported<'_>>(&mut Reader::new(results), 10).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let groups = |e: &mount::Exported<'_>| e.groups.iter().map(|g| text(g.0)).collect::<Vec<_>>();
    let listed: Vec<_> = listed.iter().map(|e| (text(e.path.0), groups(e))).collect();
    let of = |path: &str, groups: &[&str]| {
        (path.to_owned(), groups.iter().map(|&g| g.to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(listed, [of("/srv/a", &[]), of("/srv/b", &["10.1.0.0/16", "2001:db8::7"])]);
}

#[test]
fn test_call_keeps_to_the_rules_of_the_export_that_its_handle_names() {
    let lab = lab(&[("a", "/a"), ("b", "/b")]);
    let [a, b] = ["/a", "/b"].map(|path| mnt(&lab, path).unwrap());
    let shares = lab.service.shares();
    let only = |client: &str| {
        let clients = vec![client.parse().unwrap()];
        Access { clients, ..Access::default() }
    };
    shares[0].set_access(only("10.0.0.1")).unwrap();
    shares[1].set_access(only("10.0.0.2")).unwrap();
    let is_denied = |peer: &str, p: Procedure, arguments: &[u8]| {
        let peer: SocketAddr = format!("{peer}:700").parse().unwrap();
        let mut reply = Vec::new();
        lab.service
            .handle_from(Some(peer), &message(p, Auth::NONE, arguments), &mut reply)
            .unwrap();
        let refused = ReplyBody::Denied(Denied::AuthError(AuthStat::TOO_WEAK));
        Reply::decode(&reply).unwrap().0.body == refused
    };
    for (own, other, root, path) in
        [("10.0.0.1", "10.0.0.2", a, "/a"), ("10.0.0.2", "10.0.0.1", b, "/b")]
    {
        let getattr = OfHandle { object: root }.bytes();
        let mount = Opaque::<4095>(path.as_bytes()).bytes();
        for (p, arguments) in [(procedure::GETATTR, getattr), (mount::MNT, mount)] {
            assert!(!is_denied(own, p, &arguments), "{path} {p:?}");
            assert!(is_denied(other, p, &arguments), "{path} {p:?}");
        }
    }
    // Read-only mode and counters belong to each export alone.
    shares[0].export().set(true, false);
    assert_eq!(create(&lab, a, "file"), Err(Status::ROFS));
    create(&lab, b, "file").unwrap();
    assert_eq!((names(&lab.path("a")), names(&lab.path("b"))), (vec![], vec!["file".to_owned()]));
    let counts = [0, 1].map(|i: usize| (shares[i].counts().failed, shares[i].counts().denied));
    assert_eq!(counts, [(1, 2), (0, 2)]);
    assert_eq!((lab.service.counts().failed, lab.service.counts().denied), (1, 4));
}

#[test]
fn test_call_acts_as_the_user_of_its_export() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let lab = lab(&[("a", "/a"), ("b", "/b")]);
    let squash = |uid| Access { squash: Squash::All, anonuid: uid, anongid: uid, clients: vec![] };
    let shares = lab.service.shares();
    if shares[0].set_access(squash(3000)).is_err() {
        return;
    }
    shares[1].set_access(squash(4000)).unwrap();
    for dir in ["", "a", "b"] {
        fs::set_permissions(lab.path(dir), fs::Permissions::from_mode(0o1777)).unwrap();
    }
    for (path, uid) in [("/a", 3000), ("/b", 4000)] {
        create(&lab, mnt(&lab, path).unwrap(), "file").unwrap();
        assert_eq!(fs::metadata(lab.path(&format!("{}/file", &path[1..]))).unwrap().uid(), uid);
    }
}

#[test]
fn test_rename_and_link_between_exports_are_refused() {
    let lab = lab(&[("a", "/a"), ("b", "/b")]);
    let [a, b] = ["/a", "/b"].map(|path| mnt(&lab, path).unwrap());
    let file = create(&lab, a, "file").unwrap();
    assert_eq!(rename(&lab, at(a, "file"), at(b, "file")), Status::XDEV);
    assert_eq!(link(&lab, file, at(b, "file")), Status::XDEV);
    assert_eq!((names(&lab.path("a")), names(&lab.path("b"))), (vec!["file".to_owned()], vec![]));
    // A move to another export fails with XDEV, not with ROFS, though that export is read-only.
    lab.service.shares()[1].export().set(true, false);
    assert_eq!(rename(&lab, at(a, "file"), at(b, "file")), Status::XDEV);
    serve(&lab, &[("a", "/a")]);
    assert_eq!(rename(&lab, at(a, "file"), at(b, "file")), Status::STALE);
    assert_eq!(rename(&lab, at(a, "file"), at(a, "other")), Status::OK);
}

/// Calls every procedure with the handle of an export that does not exist any more, whatever rules
/// the others have.
#[test]
fn test_handles_of_an_export_that_is_gone_are_stale_for_every_procedure() {
    let lab = lab(&[("a", "/a"), ("b", "/b")]);
    let [a, b] = ["/a", "/b"].map(|path| mnt(&lab, path).unwrap());
    let file = create(&lab, b, "file").unwrap();
    let kept = create(&lab, a, "kept").unwrap();
    let stay = lab.service.shares().swap_remove(0);
    lab.service.set_shares(vec![Arc::clone(&stay)]).unwrap();
    stay.export().set(true, true);
    let clients = vec!["10.0.0.1".parse().unwrap()];
    stay.set_access(Access { clients, ..Access::default() }).unwrap();
    let name = at(b, "file");
    let (attributes, of) = (Sattr::default(), OfHandle { object: file }.bytes());
    let write = Write { file, offset: 0, count: 1, stable: Stable::FileSync, data: Opaque(b"x") };
    let cookie = (0, Verifier::default());
    let calls = [
        (procedure::GETATTR, of.clone()),
        (procedure::SETATTR, Setattr { object: file, attributes, guard: None }.bytes()),
        (procedure::LOOKUP, name.bytes()),
        (procedure::ACCESS, [of.clone(), 63u32.bytes()].concat()),
        (procedure::READLINK, of.clone()),
        (procedure::READ, [of.clone(), 0u64.bytes(), 9u32.bytes()].concat()),
        (procedure::WRITE, write.bytes()),
        (procedure::CREATE, [name.bytes(), How::Guarded(attributes).bytes()].concat()),
        (procedure::MKDIR, Mkdir { at: name, attributes }.bytes()),
        (procedure::SYMLINK, Symlink { at: name, attributes, path: Opaque(b"x") }.bytes()),
        (procedure::MKNOD, [name.bytes(), 7u32.bytes(), attributes.bytes()].concat()),
        (procedure::REMOVE, name.bytes()),
        (procedure::RMDIR, name.bytes()),
        (procedure::RENAME, Rename { from: name, to: at(a, "taken") }.bytes()),
        (procedure::LINK, Link { file, at: at(a, "taken") }.bytes()),
        (
            procedure::READDIR,
            [OfHandle { object: b }.bytes(), vec![0; 16], 999u32.bytes()].concat(),
        ),
        (
            procedure::READDIRPLUS,
            Readdirplus {
                dir: b,
                cookie: cookie.0,
                verifier: cookie.1,
                dircount: 99,
                maxcount: 999,
            }
            .bytes(),
        ),
        (procedure::FSSTAT, of.clone()),
        (procedure::FSINFO, of.clone()),
        (procedure::PATHCONF, of.clone()),
        (procedure::COMMIT, [of, 0u64.bytes(), 0u32.bytes()].concat()),
    ];
    assert_eq!(calls.len(), procedure::NAMES.len() - 1, "all but NULL");
    // A client that the other export does not admit gets the same answer, and learns no more.
    for peer in ["10.0.0.1:700", "10.0.0.9:700"] {
        for (p, arguments) in &calls {
            let mut reply = Vec::new();
            let call = message(*p, Auth::NONE, arguments);
            lab.service.handle_from(Some(peer.parse().unwrap()), &call, &mut reply).unwrap();
            let (header, results) = Reply::decode(&reply).unwrap();
            assert!(header.has_results(), "{p:?} of {peer}: {header:?}");
            let status = u32::from_be_bytes(*results.first_chunk().unwrap());
            assert_eq!(Status(status), Status::STALE, "{p:?} of {peer}");
        }
    }
    assert_eq!(mnt(&lab, "/b"), Err(Status::NOENT), "the only export has no such directory");
    assert_eq!(names(&lab.path("b")), ["file"]);
    assert!(lab.getattr(kept).is_ok(), "those of the export that stays hold");
    // The export comes back, and its handles are valid again.
    lab.service.set_shares(vec![stay, share(&lab, "b", "/b")]).unwrap();
    assert!(patient(&lab, file).is_ok());
}

#[test]
fn test_handles_of_several_exports_survive_a_restart() {
    let lab = lab(&[("a", "/a"), ("b", "/b")]);
    let files = ["/a", "/b"].map(|path| create(&lab, mnt(&lab, path).unwrap(), "file").unwrap());
    fs::write(lab.path("a/file"), "of a").unwrap();
    fs::write(lab.path("b/file"), "of b").unwrap();
    // The exports are in another order, with another export beside them.
    fs::create_dir(lab.path("c")).unwrap();
    serve(&lab, &[("c", "/c"), ("b", "/b"), ("a", "/a")]);
    for (file, contents) in files.into_iter().zip(["of a", "of b"]) {
        patient(&lab, file).unwrap();
        assert_eq!(lab.read(file, 0, 9).unwrap().0, contents.as_bytes());
    }
}

#[test]
fn test_directory_that_is_exported_by_two_names_has_the_rules_of_each() {
    let lab = lab(&[("a", "/ro"), ("a", "/rw")]);
    lab.service.shares()[0].export().set(true, false);
    let [ro, rw] = ["/ro", "/rw"].map(|path| mnt(&lab, path).unwrap());
    let file = create(&lab, rw, "file").unwrap();
    assert_eq!(create(&lab, ro, "other"), Err(Status::ROFS));
    let same = lab.lookup(ro, b"file").unwrap().object;
    assert_ne!(same, file);
    assert_eq!(lab.write(same, 0, b"x").map(drop), Err(Status::ROFS));
    lab.write(file, 0, b"x").unwrap();
    assert_eq!(lab.read(same, 0, 9).unwrap().0, b"x");
    for (dir, path) in [("a", "/rw"), ("a", "//rw/"), ("b", "/rw")] {
        fs::create_dir_all(lab.path(dir)).unwrap();
        let twice = vec![share(&lab, "a", "/rw"), share(&lab, dir, path)];
        let refused = lab.service.set_shares(twice).unwrap_err();
        assert!(matches!(refused, SharesError::Twice(_)), "{path}");
    }
    assert_eq!(lab.service.set_shares(vec![]), Err(SharesError::None));
    assert_eq!(lab.service.shares().len(), 2, "nothing has changed");
}

fn listed(lab: &Lab, dir: Handle) -> Vec<(String, bool)> {
    let call = Readdirplus {
        dir,
        cookie: 0,
        verifier: Verifier::default(),
        dircount: 9999,
        maxcount: 99_999,
    };
    let entries = lab.call::<DirPlus<'_>, Option<Fattr>>(procedure::READDIRPLUS, &call).unwrap();
    let known = |e: &DirPlusEntry<'_>| {
        assert_eq!(e.handle.is_some(), e.attributes.is_some());
        (String::from_utf8(e.name.0.to_vec()).unwrap(), e.handle.is_some())
    };
    let mut all: Vec<_> = entries.entries.iter().map(known).collect();
    all.retain(|(name, _)| name != "." && name != "..");
    all.sort();
    all
}

#[test]
fn test_export_does_not_enter_an_export_inside_it() {
    let lab = lab(&[("", "/srv"), ("d/inner", "/srv/d/inner")]);
    fs::create_dir(lab.path("d/inner/sub")).unwrap();
    fs::write(lab.path("d/inner/sub/file"), "of inner").unwrap();
    fs::write(lab.path("d/beside"), "of outer").unwrap();
    let outer = mnt(&lab, "/srv").unwrap();
    let d = lab.lookup(outer, b"d").unwrap().object;
    let inner = mnt(&lab, "/srv/d/inner").unwrap();
    assert_eq!(lab.lookup(d, b"inner").map(drop), Err(Status::ACCES));
    assert_eq!(listed(&lab, d), [("beside".into(), true), ("inner".into(), false)]);
    let sub = lab.lookup(inner, b"sub").unwrap().object;
    let file = lab.lookup(sub, b"file").unwrap().object;
    assert_eq!(lab.read(file, 0, 99).unwrap().0, b"of inner");
    assert_eq!(lab.lookup(inner, b"..").unwrap().object, inner, "it leads out of no export");
    for within in [inner, sub, file] {
        assert_eq!(patient(&lab, forged(outer, within)), Err(Status::STALE));
    }
    // Objects that lie in both belong to the inner export alone: the outer one can neither remove,
    // replace nor make them.
    let refused = |p: Procedure, name: &str| {
        lab.refused::<WccData, WccData>(p, &Remove { dir: d, name: Opaque(name.as_bytes()) })
    };
    assert_eq!(refused(procedure::RMDIR, "inner"), Status::ACCES);
    assert_eq!(refused(procedure::REMOVE, "inner"), Status::ACCES);
    assert_eq!(rename(&lab, at(d, "inner"), at(outer, "moved")), Status::ACCES);
    fs::remove_dir_all(lab.path("d/inner/sub")).unwrap();
    fs::create_dir(lab.path("d/empty")).unwrap();
    assert_eq!(rename(&lab, at(d, "empty"), at(d, "inner")), Status::ACCES);
    let mkdir = Mkdir { at: at(d, "inner"), attributes: Sattr::default() };
    assert_eq!(lab.refused::<Created, WccData>(procedure::MKDIR, &mkdir), Status::EXIST);
    assert_eq!(names(&lab.path("d")), ["beside", "empty", "inner"]);
    create(&lab, inner, "new").unwrap();
    // Without the inner export, the outer one covers the whole directory.
    let only = lab.service.shares().swap_remove(0);
    lab.service.set_shares(vec![only]).unwrap();
    assert!(lab.lookup(d, b"inner").is_ok());
}

/// The handles were valid until the inner export came, and the table still knows the way to them.
#[test]
fn test_handles_from_before_an_inner_export_do_not_lead_into_it() {
    let lab = lab(&[("", "/srv")]);
    fs::create_dir_all(lab.path("d/inner/sub")).unwrap();
    fs::write(lab.path("d/inner/sub/file"), "x").unwrap();
    let before = ["d/inner", "d/inner/sub", "d/inner/sub/file"].map(|path| lab.handle(path));
    let outer = lab.service.shares().swap_remove(0);
    let both = vec![outer, share(&lab, "d/inner", "/srv/d/inner")];
    lab.service.set_shares(both).unwrap();
    for handle in before {
        assert_eq!(patient(&lab, handle), Err(Status::STALE));
        assert_eq!(create(&lab, handle, "new"), Err(Status::STALE));
    }
    assert_eq!(names(&lab.path("d/inner/sub")), ["file"]);
}

/// The name is a new one, and the table knows another directory by this name: the identity is still
/// that of the inner export.
#[test]
fn test_inner_export_that_the_host_moves_is_entered_by_no_other_name() {
    let lab = lab(&[("", "/srv"), ("inner", "/srv/inner")]);
    fs::create_dir(lab.path("d")).unwrap();
    fs::write(lab.path("d/file"), "x").unwrap();
    let outer = mnt(&lab, "/srv").unwrap();
    let d = lab.lookup(outer, b"d").unwrap().object;
    let file = lab.lookup(d, b"file").unwrap().object;
    // The host moves the file into the inner directory, and moves that directory to the other one's
    // place.
    fs::rename(lab.path("d/file"), lab.path("inner/file")).unwrap();
    fs::remove_dir(lab.path("d")).unwrap();
    fs::rename(lab.path("inner"), lab.path("d")).unwrap();
    assert_eq!(lab.lookup(outer, b"d").map(drop), Err(Status::ACCES));
    assert_eq!(patient(&lab, file), Err(Status::STALE));
    assert_eq!(patient(&lab, d), Err(Status::STALE));
    // The inner export's own handles are valid wherever its directory is.
    let inner = lab.service.shares()[1].export().root();
    assert!(lab.lookup(inner, b"file").is_ok());
    assert!(Path::new(&lab.path("d/file")).exists());
}
