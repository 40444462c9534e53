//! MOUNT version 3 (RFC 1813 Appendix I).

use std::collections::VecDeque;
use std::sync::PoisonError;

use heddle_rpcrdma::rpc::{Auth, AuthSys, Flavor, Procedure, Status as RpcStatus};

use super::shares::Shares;
use super::{Carried, Done, Service, Share, garbage, run};
use crate::wire::mount::{self, DirPath, Mounted};
use crate::wire::{FileType, NAME_MAX, Opaque, Status, Xdr, put_opaque};

/// The number of mounts that the service remembers; only DUMP depends on them.
const MOUNTS_MAX: usize = 256;

/// The highest number of directories in a path to be mounted.
const COMPONENTS_MAX: usize = 512;

/// The clients that have reported a mount, each with the path.
#[derive(Debug, Default)]
pub(super) struct Mounts(VecDeque<(Vec<u8>, Vec<u8>)>);

impl Mounts {
    fn add(&mut self, host: &[u8], path: &[u8]) {
        self.remove(host, path);
        if self.0.len() == MOUNTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((host.to_vec(), path.to_vec()));
    }

    fn remove(&mut self, host: &[u8], path: &[u8]) {
        self.0.retain(|(h, p)| h != host || p != path);
    }

    fn remove_all(&mut self, host: &[u8]) {
        self.0.retain(|(h, _)| h != host);
    }
}

/// Returns the machine name in a caller's credential.
fn host<'a>(cred: &Auth<'a>) -> &'a [u8] {
    AuthSys::decode(cred).map_or(b"unknown", |sys| sys.machine)
}

impl Service {
    pub(super) fn mount(
        &self,
        shares: &Shares,
        p: Procedure,
        cred: &Auth<'_>,
        arguments: &[u8],
        out: &mut Vec<u8>,
    ) -> Done {
        let mounts = || self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        match p {
            mount::NULL => run(arguments, out, |()| ()),
            mount::MNT => run(arguments, out, |path: DirPath<'_>| {
                let found = shares.of_path(path.0).ok_or((Status::NOENT, ()))?;
                let mounted = found.0.mount(&found.1).map_err(|status| (status, ()))?;
                mounts().add(host(cred), path.0);
                Ok::<Mounted, (Status, ())>(mounted)
            }),
            mount::DUMP => {
                <()>::whole(arguments).map_err(garbage)?;
                for (host, path) in &mounts().0 {
                    true.put(out);
                    put_opaque(out, host.get(..NAME_MAX as usize).unwrap_or(host));
                    put_opaque(out, path);
                }
                false.put(out);
                Ok(Carried::Done(super::Handled::default()))
            }
            mount::UMNT => {
                run(arguments, out, |path: DirPath<'_>| mounts().remove(host(cred), path.0))
            }
            mount::UMNTALL => run(arguments, out, |()| mounts().remove_all(host(cred))),
            mount::EXPORT => {
                <()>::whole(arguments).map_err(garbage)?;
                for share in shares.iter() {
                    true.put(out);
                    DirPath::put(&Opaque(share.path()), out);
                    // An export without groups is for every client.
                    for network in share.clients() {
                        true.put(out);
                        put_opaque(out, network.as_bytes());
                    }
                    false.put(out);
                }
                false.put(out);
                Ok(Carried::Done(super::Handled::default()))
            }
            _ => Err(RpcStatus::ProcUnavail),
        }
    }
}

impl Share {
    /// Returns the handle of the directory that these names lead to.
    fn mount(&self, names: &[&[u8]]) -> Result<Mounted, Status> {
        if names.len() > COMPONENTS_MAX {
            return Err(Status::NAMETOOLONG);
        }
        let root = self.export.object(&self.export.root())?;
        let object = names.iter().try_fold(root, |object, name| self.entry(&object, name))?;
        if object.attributes.kind != FileType::Directory {
            return Err(Status::NOTDIR);
        }
        // AUTH_SYS comes first, since Linux asks for this flavor first.
        let flavors = vec![Flavor::SYS.0, Flavor::NONE.0];
        Ok(Mounted { handle: self.export.handle(&object), flavors })
    }
}
