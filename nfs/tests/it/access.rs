//! Admission of callers, and the users as whom calls are carried out, with users that exist. Acting
//! for users takes root.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::sync::{Arc, Mutex};
use std::thread;

use heddle_nfs::wire::{
    Access as Ask, AccessOk, Create, Created, DirEntryName, Fattr, Handle, How, LookupOk, OfHandle,
    Opaque, ReadOk, Sattr, Setattr, Stable, Status, WccData, Write, WriteOk, Xdr, mount, procedure,
};
use heddle_nfs::{Access, AccessError, Disk, Extent, Options, Squash, SystemDisk};
use heddle_rpcrdma::rpc::{AuthStat, AuthSys, Denied, Gids, Procedure, Reply, ReplyBody};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::capabilities;

use crate::common::{Lab, message};

const ANN: u32 = 1001;
const BOB: u32 = 1002;
/// A group that Ann is in besides her own.
const STAFF: u32 = 2000;

/// A user, as a client claims it.
#[derive(Clone, Copy)]
struct Caller<'a>(u32, u32, &'a [u32]);

const ROOT: Caller<'_> = Caller(0, 0, &[0]);
const AS_ANN: Caller<'_> = Caller(ANN, ANN, &[STAFF]);
const AS_BOB: Caller<'_> = Caller(BOB, BOB, &[]);

/// Returns the thread's identity as the file system sees it.
fn self_now() -> (u32, u32, usize, u64) {
    let groups = getgroups().unwrap().len();
    let own = capabilities(None).unwrap().effective.bits();
    (geteuid().as_raw(), getegid().as_raw(), groups, own)
}

fn raw(lab: &Lab, peer: Option<&str>, who: Caller<'_>, p: Procedure, arguments: &[u8]) -> Vec<u8> {
    let Caller(uid, gid, gids) = who;
    let sys = AuthSys { stamp: 0, machine: b"host", uid, gid, gids: Gids::new(gids).unwrap() };
    let mut room = [0; 400];
    let call = message(p, sys.encode(&mut room).unwrap(), arguments);
    let peer = peer.map(|peer| SocketAddr::new(peer.parse::<IpAddr>().unwrap(), 700));
    let (before, mut reply) = (self_now(), Vec::new());
    lab.service.handle_from(peer, &call, &mut reply).unwrap();
    assert_eq!(self_now(), before, "the thread is the server again");
    reply
}

fn call<'a, R: Xdr<'static>, F: Xdr<'static>>(
    lab: &Lab,
    who: Caller<'_>,
    p: Procedure,
    arguments: &impl Xdr<'a>,
) -> Result<R, (Status, F)> {
    let reply: &'static [u8] = raw(lab, None, who, p, &arguments.bytes()).leak();
    Result::<R, (Status, F)>::whole(Reply::decode(reply).unwrap().1).unwrap()
}

fn lookup(lab: &Lab, who: Caller<'_>, dir: Handle, name: &str) -> Result<Handle, Status> {
    let at = DirEntryName { dir, name: Opaque(name.as_bytes()) };
    let found = call::<LookupOk, Option<Fattr>>(lab, who, procedure::LOOKUP, &at);
    found.map(|found| found.object).map_err(|(status, _)| status)
}

fn create(lab: &Lab, who: Caller<'_>, name: &str, mode: u32) -> Result<Created, Status> {
    let at = DirEntryName { dir: lab.root(), name: Opaque(name.as_bytes()) };
    let how = How::Guarded(Sattr { mode: Some(mode), ..Sattr::default() });
    let made = call::<_, WccData>(lab, who, procedure::CREATE, &Create { at, how });
    made.map_err(|(status, _)| status)
}

fn write(lab: &Lab, who: Caller<'_>, file: Handle) -> Result<(), Status> {
    let call_ = Write { file, offset: 0, count: 1, stable: Stable::Unstable, data: Opaque(b"x") };
    let done = call::<WriteOk, WccData>(lab, who, procedure::WRITE, &call_);
    done.map(drop).map_err(|(status, _)| status)
}

fn read(lab: &Lab, who: Caller<'_>, file: Handle) -> Result<Vec<u8>, Status> {
    let call_ = heddle_nfs::wire::Read { file, offset: 0, count: 100 };
    let done = call::<ReadOk<'_>, Option<Fattr>>(lab, who, procedure::READ, &call_);
    done.map(|read| read.data.0.to_vec()).map_err(|(status, _)| status)
}

fn chmod(lab: &Lab, who: Caller<'_>, object: Handle, mode: u32) -> Result<(), Status> {
    let attributes = Sattr { mode: Some(mode), ..Sattr::default() };
    let call_ = Setattr { object, attributes, guard: None };
    let done = call::<WccData, WccData>(lab, who, procedure::SETATTR, &call_);
    done.map(drop).map_err(|(status, _)| status)
}

/// Returns an export to which any user may write, with this access; `None` where the test cannot
/// act for users.
fn lab(access: Access) -> Option<Lab> {
    open_to_all(Lab::new(), access)
}

fn open_to_all(lab: Lab, access: Access) -> Option<Lab> {
    if !geteuid().is_root() {
        assert_eq!(lab.service.shares()[0].set_access(access), Err(AccessError::Privilege));
        return None;
    }
    lab.service.shares()[0].set_access(access).unwrap();
    fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o1777)).unwrap();
    Some(lab)
}

fn squashing(squash: Squash) -> Option<Lab> {
    lab(Access { squash, ..Access::default() })
}

fn owner(lab: &Lab, name: &str) -> (u32, u32) {
    let stat = fs::metadata(lab.path(name)).unwrap();
    (stat.uid(), stat.gid())
}

#[test]
fn test_user_owns_what_it_makes_and_others_are_refused() {
    let Some(lab) = squashing(Squash::Root) else { return };
    let file = create(&lab, AS_ANN, "ann", 0o600).unwrap().object.unwrap();
    assert_eq!(owner(&lab, "ann"), (ANN, ANN));
    write(&lab, AS_ANN, file).unwrap();
    // The service keeps descriptors that Ann's calls opened.
    assert_eq!(read(&lab, AS_ANN, file).unwrap(), b"x");
    for other in [AS_BOB, ROOT, Caller(BOB, ANN, &[])] {
        assert_eq!(read(&lab, other, file), Err(Status::ACCES));
        assert_eq!(write(&lab, other, file), Err(Status::ACCES));
        assert_eq!(chmod(&lab, other, file, 0o666), Err(Status::PERM));
    }
    chmod(&lab, AS_ANN, file, 0o444).unwrap();
    assert_eq!(read(&lab, AS_BOB, file).unwrap(), b"x");
    assert_eq!(write(&lab, AS_BOB, file), Err(Status::ACCES));
    write(&lab, AS_ANN, file).unwrap();
    create(&lab, ROOT, "root", 0o644).unwrap();
    assert_eq!(owner(&lab, "root"), (65_534, 65_534));
}

#[test]
fn test_groups_of_the_credential_count_and_the_servers_do_not() {
    let Some(lab) = squashing(Squash::Root) else { return };
    for (name, group) in [("staff", STAFF), ("root", 0)] {
        fs::write(lab.path(name), b"contents").unwrap();
        chown(lab.path(name), Some(0), Some(group)).unwrap();
        fs::set_permissions(lab.path(name), fs::Permissions::from_mode(0o060)).unwrap();
    }
    let [staff, root] =
        ["staff", "root"].map(|name| lookup(&lab, AS_ANN, lab.root(), name).unwrap());
    assert_eq!(read(&lab, AS_ANN, staff).unwrap(), b"contents");
    write(&lab, AS_ANN, staff).unwrap();
    assert_eq!(read(&lab, AS_BOB, staff), Err(Status::ACCES));
    // Root's group is squashed like root, both as the main group and in the list.
    for who in [AS_ANN, Caller(ANN, 0, &[]), Caller(ANN, ANN, &[0])] {
        assert_eq!(read(&lab, who, root), Err(Status::ACCES));
    }
}

#[test]
fn test_handle_works_below_a_directory_that_the_user_cannot_search() {
    let Some(lab) = squashing(Squash::Root) else { return };
    fs::create_dir_all(lab.path("closed/open")).unwrap();
    fs::write(lab.path("closed/open/file"), b"contents").unwrap();
    let open = lookup(&lab, AS_ANN, lookup(&lab, AS_ANN, lab.root(), "closed").unwrap(), "open");
    let open = open.unwrap();
    let file = lookup(&lab, AS_ANN, open, "file").unwrap();
    fs::set_permissions(lab.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(read(&lab, AS_ANN, file).unwrap(), b"contents");
    let closed = lookup(&lab, AS_ANN, open, "..").unwrap();
    assert_eq!(lookup(&lab, AS_ANN, closed, "open"), Err(Status::ACCES));
    let access = |who| {
        let ask = Ask { object: closed, access: 0x3f };
        call::<AccessOk, Option<Fattr>>(&lab, who, procedure::ACCESS, &ask).unwrap().access
    };
    assert_eq!((access(AS_ANN), access(ROOT)), (0, 0));
}

#[test]
fn test_all_squash_and_no_root_squash_decide_the_owner() {
    let anonymous = Access { anonuid: 3000, anongid: 3001, ..Access::default() };
    let Some(all) = lab(Access { squash: Squash::All, ..anonymous.clone() }) else { return };
    for (who, name) in [(AS_ANN, "ann"), (ROOT, "root"), (Caller(u32::MAX, 0, &[]), "last")] {
        create(&all, who, name, 0o600).unwrap();
        assert_eq!(owner(&all, name), (3000, 3001));
    }
    let none = lab(Access { squash: Squash::None, ..anonymous }).unwrap();
    create(&none, ROOT, "root", 0o600).unwrap();
    create(&none, AS_ANN, "ann", 0o600).unwrap();
    assert_eq!((owner(&none, "root"), owner(&none, "ann")), ((0, 0), (ANN, ANN)));
    let file = lookup(&none, ROOT, none.root(), "ann").unwrap();
    write(&none, ROOT, file).unwrap();
    let attributes = Sattr { uid: Some(BOB), ..Sattr::default() };
    let give = Setattr { object: file, attributes, guard: None };
    call::<WccData, WccData>(&none, ROOT, procedure::SETATTR, &give).unwrap();
    assert_eq!(owner(&none, "ann").0, BOB);
}

/// The system takes the last number as "leave unchanged", which would mean root.
#[test]
fn test_last_uid_and_gid_do_not_act_as_the_server() {
    for squash in [Squash::Root, Squash::None] {
        let Some(lab) = squashing(squash) else { return };
        fs::write(lab.path("secret"), b"of root").unwrap();
        fs::set_permissions(lab.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        let last = u32::MAX;
        let callers = [Caller(last, last, &[]), Caller(last, ANN, &[]), Caller(ANN, last, &[last])];
        for (i, who) in callers.into_iter().enumerate() {
            let file = lookup(&lab, who, lab.root(), "secret").unwrap();
            assert_eq!(read(&lab, who, file), Err(Status::ACCES));
            create(&lab, who, &i.to_string(), 0o600).unwrap();
            assert_eq!(owner(&lab, &i.to_string()), (65_534, 65_534));
        }
    }
    let lab = Lab::new();
    let access = Access { squash: Squash::All, anonuid: u32::MAX, ..Access::default() };
    assert_eq!(lab.service.shares()[0].set_access(access), Err(AccessError::Number(u32::MAX)));
}

#[test]
fn test_concurrent_users_never_act_as_each_other() {
    let Some(lab) = squashing(Squash::Root) else { return };
    let lab = &lab;
    thread::scope(|scope| {
        for user in 0..4 {
            scope.spawn(move || {
                let uid = 5000 + user;
                for i in 0..200 {
                    let name = format!("{user}-{i}");
                    let made = create(lab, Caller(uid, uid, &[]), &name, 0o600).unwrap();
                    assert_eq!(owner(lab, &name), (uid, uid));
                    let other = Caller(5000 + (user + 1) % 4, 0, &[]);
                    assert_eq!(read(lab, other, made.object.unwrap()), Err(Status::ACCES));
                }
            });
        }
    });
}

/// A disk that records the identity of the threads that use it.
#[derive(Debug, Default)]
struct Watched(Mutex<Vec<(u32, u32, usize, u64)>>);

impl Disk for Watched {
    fn sync(&self, file: BorrowedFd<'_>, extent: Extent) -> io::Result<()> {
        self.0.lock().unwrap().push(self_now());
        SystemDisk.sync(file, extent)
    }
}

#[test]
fn test_changes_of_users_are_put_on_the_disk_by_the_server() {
    let disk = Arc::new(Watched::default());
    let lab = Lab::with_disk(Options::default(), Arc::clone(&disk) as Arc<dyn Disk>);
    let Some(lab) = open_to_all(lab, Access { squash: Squash::Root, ..Access::default() }) else {
        return;
    };
    let seen = || std::mem::take(&mut *disk.0.lock().unwrap());
    // The first call makes the flusher start its threads.
    let file = create(&lab, AS_ANN, "ann", 0o200).unwrap().object.unwrap();
    assert_eq!(owner(&lab, "ann"), (ANN, ANN));
    assert_eq!(seen(), [self_now(); 2], "a directory and a file");
    chmod(&lab, AS_ANN, file, 0o000).unwrap();
    assert_eq!(seen(), [self_now()]);
    assert_eq!(chmod(&lab, AS_BOB, file, 0o666), Err(Status::PERM));
    assert_eq!(seen(), []);
}

#[test]
fn test_user_changes_names_in_a_directory_that_it_cannot_read() {
    let lab = Lab::with(Options::default());
    let Some(lab) = open_to_all(lab, Access { squash: Squash::Root, ..Access::default() }) else {
        return;
    };
    fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o1733)).unwrap();
    create(&lab, AS_ANN, "ann", 0o600).unwrap();
    assert_eq!(owner(&lab, "ann"), (ANN, ANN));
    let remove = |who| {
        let at = DirEntryName { dir: lab.root(), name: Opaque(b"ann") };
        let done = call::<WccData, WccData>(&lab, who, procedure::REMOVE, &at);
        done.map(drop).map_err(|(status, _)| status)
    };
    // The server opens the directory as itself, and still removes the name as the user.
    assert_eq!(remove(AS_BOB), Err(Status::PERM));
    assert_eq!(remove(AS_ANN), Ok(()));
    fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(matches!(create(&lab, AS_ANN, "ann", 0o600), Err(Status::ACCES)));
}

#[test]
fn test_only_listed_clients_are_served_and_mount_says_who_they_are() {
    let lab = Lab::new();
    let clients = vec!["10.1.0.0/16".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    lab.service.shares()[0].set_access(Access { clients, ..Access::default() }).unwrap();
    let getattr = OfHandle { object: lab.root() }.bytes();
    let path = Opaque::<1024>(b"/data").bytes();
    let is_denied = |peer: &str, p: Procedure, arguments: &[u8]| {
        let reply = raw(&lab, Some(peer), AS_ANN, p, arguments);
        let body = Reply::decode(&reply).unwrap().0.body;
        let refused = ReplyBody::Denied(Denied::AuthError(AuthStat::TOO_WEAK));
        assert!(body == refused || Reply::decode(&reply).unwrap().0.has_results());
        body == refused
    };
    for (peer, denied) in [
        ("10.1.2.3", false),
        ("::ffff:10.1.2.3", false),
        ("10.2.0.1", true),
        ("2001:db8::7", false),
        ("2001:db8::8", true),
    ] {
        assert_eq!(is_denied(peer, procedure::GETATTR, &getattr), denied, "{peer}");
        assert_eq!(is_denied(peer, mount::MNT, &path), denied, "{peer}");
        assert!(!is_denied(peer, procedure::NULL, &[]) && !is_denied(peer, mount::EXPORT, &[]));
    }
    let (results, _) = lab.results(mount::EXPORT, &[]);
    let mut reader = heddle_rpcrdma::xdr::Reader::new(results);
    let exported = mount::list::<mount::Exported<'_>>(&mut reader, 10).unwrap();
    let groups: Vec<_> = exported[0].groups.iter().map(|group| group.0).collect();
    assert_eq!((exported.len(), groups), (1, vec![&b"10.1.0.0/16"[..], b"2001:db8::7"]));
    // The new rules hold from the next call on.
    lab.service.shares()[0].set_access(Access::default()).unwrap();
    assert!(!is_denied("10.2.0.1", procedure::GETATTR, &getattr));
}
