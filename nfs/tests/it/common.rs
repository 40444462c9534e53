//! A service on a directory of its own, and calls to the service as a client makes them.
#![allow(clippy::result_large_err, reason = "results of the protocol are as large when they fail")]
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use heddle_nfs::client::{Outgoing, Returned, Token, Transport, TransportError, accepted};
use heddle_nfs::wire::{
    Create, Created, DirEntryName, Fattr, Handle, How, LookupOk, OfHandle, Opaque, Sattr, Stable,
    Status, Time, WccData, Write, WriteOk, Xdr, procedure,
};
use heddle_nfs::{Disk, Handled, Options, Service, SystemDisk};
use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::{Binding, Chunks, NFS3, Stream};
use heddle_rpcrdma::rpc::{Auth, Call, Procedure, Reply};
use tempfile::TempDir;

pub const XID: u32 = 0x1234_5678;

/// Two directories: one is exported, the other lies beside it and must stay as it is.
pub struct Lab {
    pub base: TempDir,
    pub service: Arc<Service>,
    options: Options,
}

pub const SECRET: &str = "not exported";

impl Lab {
    pub fn new() -> Lab {
        Lab::with(Options { sync: false, ..Options::default() })
    }

    pub fn with(options: Options) -> Lab {
        Lab::with_disk(options, Arc::new(SystemDisk))
    }

    pub fn with_disk(options: Options, disk: Arc<dyn Disk>) -> Lab {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("export")).unwrap();
        std::fs::create_dir(base.path().join("outside")).unwrap();
        std::fs::write(base.path().join("outside/secret"), SECRET).unwrap();
        let dir = base.path().join("export");
        let service = Service::with_disk(&dir, "/data", options, disk).unwrap();
        Lab { base, service: Arc::new(service), options }
    }

    /// Starts another service on the same directory, which knows nothing of the first.
    pub fn restart(&mut self) {
        let dir = self.base.path().join("export");
        self.service = Arc::new(Service::new(&dir, "/data", self.options).unwrap());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.path().join("export").join(name)
    }

    pub fn root(&self) -> Handle {
        self.service.shares()[0].export().root()
    }

    /// Makes a call as it arrives from a wire, and returns its results; the test leaks them, so
    /// they live for ever.
    pub fn results(&self, p: Procedure, arguments: &[u8]) -> (&'static [u8], Handled) {
        let message = message(p, Auth::NONE, arguments);
        // The service appends replies to what a buffer holds.
        let mut reply = b"before".to_vec();
        let handled = self.service.handle(&message, &mut reply).unwrap();
        let reply: &'static [u8] = Box::leak(reply.into_boxed_slice());
        let reply = reply.strip_prefix(b"before").unwrap();
        check_item(p, reply, handled);
        let (header, results) = Reply::decode(reply).unwrap();
        assert_eq!(header.xid, Xid(XID));
        assert!(header.has_results(), "{header:?}");
        (results, handled)
    }

    pub fn call<'a, R: Xdr<'static>, F: Xdr<'static>>(
        &self,
        p: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<R, (Status, F)> {
        let (results, _) = self.results(p, &arguments.bytes());
        Result::<R, (Status, F)>::whole(results).unwrap()
    }

    /// Returns the status of a call that fails.
    pub fn refused<'a, R: Xdr<'static> + std::fmt::Debug, F: Xdr<'static>>(
        &self,
        p: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Status {
        match self.call::<R, F>(p, arguments) {
            Ok(done) => panic!("{p:?} was done: {done:?}"),
            Err((status, _)) => status,
        }
    }

    pub fn lookup(&self, dir: Handle, name: &[u8]) -> Result<LookupOk, Status> {
        let at = DirEntryName { dir, name: Opaque(name) };
        self.call::<_, Option<Fattr>>(procedure::LOOKUP, &at).map_err(|(status, _)| status)
    }

    /// Returns the handle of a path below the export.
    pub fn handle(&self, path: &str) -> Handle {
        let walk = |dir, name: &str| self.lookup(dir, name.as_bytes()).unwrap().object;
        path.split('/').filter(|n| !n.is_empty()).fold(self.root(), walk)
    }

    pub fn getattr(&self, object: Handle) -> Result<Fattr, Status> {
        self.call::<heddle_nfs::wire::Attributes, ()>(procedure::GETATTR, &OfHandle { object })
            .map(|a| a.attributes)
            .map_err(|(status, ())| status)
    }

    pub fn create(&self, dir: Handle, name: &[u8], how: How) -> Result<Created, (Status, WccData)> {
        let at = DirEntryName { dir, name: Opaque(name) };
        self.call(procedure::CREATE, &Create { at, how })
    }

    pub fn write(&self, file: Handle, offset: u64, data: &[u8]) -> Result<WriteOk, Status> {
        let count = u32::try_from(data.len()).unwrap();
        let call = Write { file, offset, count, stable: Stable::Unstable, data: Opaque(data) };
        self.call::<_, WccData>(procedure::WRITE, &call).map_err(|(status, _)| status)
    }

    pub fn read(&self, file: Handle, offset: u64, count: u32) -> Result<(Vec<u8>, bool), Status> {
        let call = heddle_nfs::wire::Read { file, offset, count };
        let read = self.call::<heddle_nfs::wire::ReadOk<'_>, Option<Fattr>>(procedure::READ, &call);
        read.map(|r| (r.data.0.to_vec(), r.eof)).map_err(|(status, _)| status)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // No test may change anything beside the export.
            let secret = std::fs::read(self.base.path().join("outside/secret")).unwrap();
            assert_eq!(secret, SECRET.as_bytes());
            assert_eq!(names(&self.base.path().join("outside")), ["secret"]);
            assert_eq!(names(self.base.path()), ["export", "outside"]);
        }
    }
}

pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut all: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    all.sort();
    all
}

pub fn message(procedure: Procedure, cred: Auth<'_>, arguments: &[u8]) -> Vec<u8> {
    let call = Call { xid: Xid(XID), procedure, cred, verf: Auth::NONE };
    let mut message = vec![0; call.encoded_len()];
    call.encode(&mut message).unwrap();
    message.extend_from_slice(arguments);
    message
}

/// Checks that the item that a service reports is the one that the binding of RFC 8267 finds.
fn check_item(p: Procedure, reply: &[u8], handled: Handled) {
    let (_, results) = Reply::decode(reply).unwrap();
    let offset = u32::try_from(reply.len() - results.len()).unwrap();
    let items = NFS3.results(p, Stream::new(results, offset, Chunks::None)).unwrap();
    let found = items.as_slice().first().copied().filter(|i| i.length > 0);
    assert_eq!(handled.item, found, "{p:?}");
    assert!(items.as_slice().len() < 2);
}

pub fn time(t: std::time::SystemTime) -> Time {
    let since = t.duration_since(std::time::UNIX_EPOCH).unwrap();
    let seconds = u32::try_from(since.as_secs()).unwrap();
    Time { seconds, nanoseconds: since.subsec_nanos() }
}

pub fn mode(mode: u32) -> Sattr {
    Sattr { mode: Some(mode), ..Sattr::default() }
}

/// Carries calls straight to a service, and returns the replies in the reverse order.
pub struct Direct {
    pub service: Arc<Service>,
    pub waiting: Vec<Returned>,
    pub next: u64,
}

impl Direct {
    pub fn new(service: &Arc<Service>) -> Direct {
        Direct { service: Arc::clone(service), waiting: Vec::new(), next: 0 }
    }
}

impl Transport for Direct {
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError> {
        self.next += 1;
        let token = Token(self.next);
        let mut reply = Vec::new();
        let call = message(call.procedure, Auth::NONE, call.arguments);
        self.service.handle(&call, &mut reply).unwrap();
        let (header, results) = Reply::decode(&reply).unwrap();
        let results = accepted(&header).map(|()| results.to_vec());
        self.waiting.push(Returned { token, results });
        Ok(token)
    }

    fn wait(&mut self) -> Result<Returned, TransportError> {
        self.waiting.pop().ok_or_else(|| TransportError::Other("nothing under way".into()))
    }
}
