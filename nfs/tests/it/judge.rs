//! A foreign client over TCP: for every procedure, this test checks how that client reads our
//! results, and how we read its arguments.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use crate::common::Lab;
use heddle_nfs::tcp::{Limits, Server};
use nfs3_client::Nfs3ConnectionBuilder;
use nfs3_client::nfs3_types::nfs3::*;
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::tokio::TokioConnector;

fn at<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: name.as_bytes().into() }
}

fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: set_mode3::Some(mode), ..sattr3::default() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn test_foreign_nfs_client_finds_every_procedure_correct() {
    let lab = Lab::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, Arc::clone(&lab.service), Limits::default()).unwrap();
    runtime().block_on(all_procedures(&lab, server.address().port()));
    let counts = lab.service.counts();
    assert_eq!((counts.garbage, counts.unavailable, counts.denied), (0, 0, 0));
}

async fn all_procedures(lab: &Lab, port: u16) {
    let cred = auth_unix { machinename: Opaque::borrowed(b"judge"), ..auth_unix::default() };
    let mut c = Nfs3ConnectionBuilder::new(TokioConnector, "127.0.0.1", "/data")
        .mount_port(port)
        .nfs3_port(port)
        .connect_from_privileged_port(false)
        .credential(opaque_auth::auth_unix(&cred))
        .mount()
        .await
        .unwrap();
    let root = c.root_nfs_fh3();
    assert_eq!(root.data.0.as_ref(), lab.root().as_slice());
    c.null().await.unwrap();

    let how = createhow3::GUARDED(mode(0o600));
    let made = c.create(&CREATE3args { where_: at(&root, "f"), how }).await.unwrap().unwrap();
    let file = made.obj.unwrap();
    let data = Opaque::borrowed(b"hello");
    let stable = stable_how::FILE_SYNC;
    let args = WRITE3args { file: file.clone(), offset: 2, count: 5, stable, data };
    let written = c.write(&args).await.unwrap().unwrap();
    assert_eq!((written.count, written.committed), (5, stable_how::FILE_SYNC));
    assert_eq!(written.file_wcc.after.unwrap().size, 7);
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    assert_eq!(c.commit(&commit).await.unwrap().unwrap().verf, written.verf);
    let args = READ3args { file: file.clone(), offset: 1, count: 100 };
    let read = c.read(&args).await.unwrap().unwrap();
    assert_eq!((read.count, read.eof, read.data.0.as_ref()), (6, true, &b"\0hello"[..]));
    let args = SETATTR3args {
        object: file.clone(),
        new_attributes: sattr3 {
            size: set_size3::Some(4),
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 77, nseconds: 8 }),
            ..mode(0o640)
        },
        guard: sattrguard3::None,
    };
    c.setattr(&args).await.unwrap().unwrap();
    let attr = c.getattr(&GETATTR3args { object: file.clone() }).await.unwrap().unwrap();
    let attr = attr.obj_attributes;
    let real = fs::metadata(lab.path("f")).unwrap();
    assert_eq!((attr.fileid, attr.size, attr.mode), (real.ino(), 4, 0o640));
    assert_eq!((attr.mtime.seconds, attr.mtime.nseconds, attr.nlink), (77, 8, 1));
    let args = ACCESS3args { object: file.clone(), access: ACCESS3_READ | ACCESS3_MODIFY };
    assert_eq!(c.access(&args).await.unwrap().unwrap().access, ACCESS3_READ | ACCESS3_MODIFY);

    let args = MKDIR3args { where_: at(&root, "d"), attributes: mode(0o755) };
    let dir = c.mkdir(&args).await.unwrap().unwrap().obj.unwrap();
    let args = SYMLINK3args {
        where_: at(&dir, "l"),
        symlink: symlinkdata3 {
            symlink_attributes: sattr3::default(),
            symlink_data: (&b"../f"[..]).into(),
        },
    };
    let symlink = c.symlink(&args).await.unwrap().unwrap().obj.unwrap();
    let read = c.readlink(&READLINK3args { symlink }).await.unwrap().unwrap();
    assert_eq!(read.data.as_ref(), b"../f");
    let what = mknoddata3::NF3FIFO(mode(0o600));
    c.mknod(&MKNOD3args { where_: at(&dir, "p"), what }).await.unwrap().unwrap();
    assert!(fs::metadata(lab.path("d/p")).unwrap().file_type().is_fifo());
    let args = LINK3args { file: file.clone(), link: at(&dir, "g") };
    assert_eq!(c.link(&args).await.unwrap().unwrap().file_attributes.unwrap().nlink, 2);
    let args = RENAME3args { from: at(&dir, "g"), to: at(&dir, "h") };
    c.rename(&args).await.unwrap().unwrap();
    let args = LOOKUP3args { what: at(&dir, "h") };
    assert_eq!(c.lookup(&args).await.unwrap().unwrap().object, file);

    let args =
        READDIR3args { dir: dir.clone(), cookie: 0, cookieverf: cookieverf3([0; 8]), count: 4096 };
    let listed = c.readdir(&args).await.unwrap().unwrap();
    let mut names: Vec<_> =
        listed.reply.entries.0.iter().map(|e| e.name.as_ref().to_vec()).collect();
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"h", b"l", b"p"]);
    assert!(listed.reply.eof);
    let args = READDIRPLUS3args {
        dir: dir.clone(),
        cookie: 0,
        cookieverf: cookieverf3([0; 8]),
        dircount: 4096,
        maxcount: 4096,
    };
    let listed = c.readdirplus(&args).await.unwrap().unwrap();
    let h = listed.reply.entries.0.into_iter().find(|e| e.name.as_ref() == b"h").unwrap();
    assert_eq!((h.name_handle.unwrap(), h.name_attributes.unwrap().size), (file, 4));

    let stat = c.fsstat(&FSSTAT3args { fsroot: root.clone() }).await.unwrap().unwrap();
    assert!(stat.tbytes > 0 && stat.fbytes <= stat.tbytes);
    let info = c.fsinfo(&FSINFO3args { fsroot: root.clone() }).await.unwrap().unwrap();
    assert_eq!((info.rtmax, info.wtmax, info.time_delta.nseconds), (1 << 20, 1 << 20, 1));
    let conf = c.pathconf(&PATHCONF3args { object: root.clone() }).await.unwrap().unwrap();
    assert!(conf.name_max == 255 && conf.no_trunc && conf.case_preserving);

    for name in ["h", "l", "p"] {
        c.remove(&REMOVE3args { object: at(&dir, name) }).await.unwrap().unwrap();
    }
    c.rmdir(&RMDIR3args { object: at(&root, "d") }).await.unwrap().unwrap();
    match c.lookup(&LOOKUP3args { what: at(&root, "d") }).await.unwrap() {
        LOOKUP3res::Err((nfsstat3::NFS3ERR_NOENT, fail)) => assert!(fail.dir_attributes.is_some()),
        other => panic!("{other:?}"),
    }
    c.unmount().await.unwrap();
    assert_eq!(crate::common::names(&lab.path("")), ["f"]);
}
