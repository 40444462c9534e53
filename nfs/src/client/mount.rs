//! Lists what a server exports, and mounts it.

use heddle_rpcrdma::xdr::Reader;

use super::walk::{Found, components, shown};
use super::{Client, ClientError, Transport, parse};
use crate::wire::mount::{self, Exported, Mounted};
use crate::wire::{Fattr, Fsinfo, Handle, OfHandle, Opaque, procedure};

/// The highest number of exports that the client accepts from a server.
const EXPORTS_MAX: u32 = 4096;

impl<T: Transport> Client<T> {
    /// Returns the paths that the server exports.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn exports(&mut self) -> Result<Vec<Vec<u8>>, ClientError> {
        let results = self.call(mount::EXPORT, &())?;
        let mut r = Reader::new(&results);
        let all = mount::list::<Exported<'_>>(&mut r, EXPORTS_MAX);
        let all = all.and_then(|all| r.finish().map(|()| all));
        let all = all.map_err(|error| ClientError::Results { what: "EXPORT", error })?;
        Ok(all.into_iter().map(|export| export.path.0.to_vec()).collect())
    }

    /// Returns the handle of `path`, from the MOUNT program.
    ///
    /// # Errors
    /// Also when the server has no such export.
    pub fn export_root(&mut self, path: &[u8]) -> Result<Handle, ClientError> {
        let results = self.call(mount::MNT, &Opaque::<{ u32::MAX }>(path))?;
        let mounted: Mounted = parse::<_, ()>(&results, "MNT", &shown(path))?;
        Ok(mounted.handle)
    }

    /// Begins at a directory whose handle is known: asks the server how long READs and WRITEs may
    /// be.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn enter(&mut self, root: Handle) -> Result<Found, ClientError> {
        let results = self.call(procedure::FSINFO, &OfHandle { object: root })?;
        let info: Fsinfo = parse::<_, Option<Fattr>>(&results, "FSINFO", &"")?;
        if info.rtmax == 0 || info.wtmax == 0 {
            return Err(ClientError::Nonsense("READs or WRITEs of no bytes"));
        }
        self.read.size = self.read.size.min(info.rtmax);
        self.write.size = self.write.size.min(info.wtmax);
        self.found(root, info.attributes)
    }

    /// Mounts `path`: asks for its handle and for how long READs and WRITEs may be.
    ///
    /// # Errors
    /// Also when the server has no such export.
    pub fn mount(&mut self, path: &str) -> Result<Found, ClientError> {
        let root = self.export_root(path.as_bytes())?;
        self.enter(root)
    }
}

/// Returns the export in `exports` that contains `path`, the deepest if there are several, and the
/// rest of the path below that export.
pub fn export_of<'a>(exports: &'a [Vec<u8>], path: &[u8]) -> Option<(&'a [u8], Vec<u8>)> {
    let names: Vec<_> = components(path).collect();
    let depth = |export: &[u8]| {
        let parts: Vec<_> = components(export).collect();
        names.starts_with(&parts).then_some(parts.len())
    };
    let all = exports.iter().filter_map(|export| Some((depth(export)?, export)));
    let (depth, export) = all.max_by_key(|(depth, _)| *depth)?;
    Some((export, names.get(depth..)?.join(&b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_path_belongs_to_deepest_export_that_contains_it() {
        let exports = [&b"/srv"[..], b"/srv/data/", b"/home"].map(<[u8]>::to_vec);
        let of =
            |path: &[u8]| export_of(&exports, path).map(|(export, rest)| (export.to_vec(), rest));
        let is = |export: &[u8], rest: &[u8]| Some((export.to_vec(), rest.to_vec()));
        assert_eq!(of(b"/srv/data/a/b"), is(b"/srv/data/", b"a/b"));
        assert_eq!(of(b"//srv/./data"), is(b"/srv/data/", b""));
        assert_eq!(of(b"/srv/database/x"), is(b"/srv", b"database/x"));
        assert_eq!(of(b"/homes"), None);
        assert_eq!(export_of(&[b"/".to_vec()], b"/x"), Some((&b"/"[..], b"x".to_vec())));
    }
}
