//! MOUNT version 3 (RFC 1813 Appendix I).

use std::collections::VecDeque;
use std::sync::PoisonError;

use heddle_rpcrdma::rpc::{Auth, AuthSys, Flavor, Procedure, Status as RpcStatus};

use super::{Carried, Done, Service, garbage, run};
use crate::export::Object;
use crate::wire::mount::{self, DirPath, Mounted};
use crate::wire::{FileType, NAME_MAX, Opaque, PATH_MAX, Status, Xdr, put_opaque};

/// Mounts that are remembered; nothing depends on them but DUMP.
const MOUNTS_MAX: usize = 256;

/// Most directories in a path to be mounted.
const COMPONENTS_MAX: usize = 512;

/// Who has said that it has mounted what.
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

/// The machine a caller says it is.
fn host<'a>(cred: &Auth<'a>) -> &'a [u8] {
    AuthSys::decode(cred).map_or(b"unknown", |sys| sys.machine)
}

impl Service {
    pub(super) fn mount(
        &self,
        p: Procedure,
        cred: &Auth<'_>,
        arguments: &[u8],
        out: &mut Vec<u8>,
    ) -> Done {
        let mounts = || self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        match p {
            mount::NULL => run(arguments, out, |()| ()),
            mount::MNT => run(arguments, out, |path: DirPath<'_>| {
                let mounted = self.mount_path(path.0).map_err(|status| (status, ()))?;
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
                true.put(out);
                DirPath::put(&Opaque(self.exported_as()), out);
                // No groups: it is for everybody.
                for network in self.entrance().access.clients.iter().map(ToString::to_string) {
                    true.put(out);
                    put_opaque(out, network.as_bytes());
                }
                false.put(out);
                // There is no other export.
                false.put(out);
                Ok(Carried::Done(super::Handled::default()))
            }
            _ => Err(RpcStatus::ProcUnavail),
        }
    }

    /// What clients mount.
    pub fn exported_as(&self) -> &[u8] {
        match self.path.get(..PATH_MAX as usize).unwrap_or(&self.path) {
            [] => b"/",
            path => path,
        }
    }

    /// The handle of a path: of the export, of a directory in it, or of either without the name of the
    /// export in front.
    fn mount_path(&self, path: &[u8]) -> Result<Mounted, Status> {
        let below = match path.strip_prefix(&*self.path) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ => path,
        };
        let mut object = self.export.object(&self.export.root())?;
        let names = below.split(|&octet| octet == b'/').filter(|name| !name.is_empty());
        for (depth, name) in names.enumerate() {
            if depth == COMPONENTS_MAX {
                return Err(Status::NAMETOOLONG);
            }
            object = self.entry(&object, name)?;
        }
        self.mounted(&object)
    }

    fn mounted(&self, object: &Object) -> Result<Mounted, Status> {
        if object.attributes.kind != FileType::Directory {
            return Err(Status::NOTDIR);
        }
        // The one that Linux asks for first.
        let flavors = vec![Flavor::SYS.0, Flavor::NONE.0];
        Ok(Mounted { handle: self.export.handle(object), flavors })
    }
}
