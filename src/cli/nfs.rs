//! `heddle nfs`

mod bar;
mod copy;
mod place;
mod session;
mod show;

use std::io::{Write, stdout};
use std::time::Duration;

use clap::ValueEnum;
use heddle::nfs::client::Pipeline;
use heddle::nfs::wire::FileType;
use heddle::rpc::Speaks;
use heddle::units::Span;

use self::copy::Copier;
use self::place::{Place, Remote};
use self::session::Session;
use super::log::LogArgs;
use super::mpa::MpaArgs;
use super::net::mtu;
use super::rnic::{RnicArgs, explain};
use super::signals::Stop;
use super::{Failure, say};

/// Work with the files of an NFS server. TARGET is ADDR[:PORT]:/PATH.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List a directory
    Ls {
        /// With kind, permissions, links, owner, group, bytes and time (UTC)
        #[arg(short = 'l')]
        long: bool,
        /// The directory, or a file
        target: Remote,
        #[command(flatten)]
        common: Common,
    },
    /// Write a file to standard output
    Cat {
        /// The file to write
        target: Remote,
        #[command(flatten)]
        common: Common,
    },
    /// Show attributes; for a symbolic link, the link's own
    Stat {
        /// The file, directory or link
        target: Remote,
        #[command(flatten)]
        common: Common,
    },
    /// Copy a file from a server or to one
    Cp {
        /// Copy directories with their contents as well; symbolic links and devices are left out
        #[arg(short = 'r')]
        recursive: bool,
        /// Read each file on both sides again and compare their SHA-256
        #[arg(long)]
        verify: bool,
        /// Local, or ADDR[:PORT]:/PATH
        from: Place,
        /// The other side; an existing directory receives the copy inside it
        to: Place,
        #[command(flatten)]
        common: Common,
    },
}

/// The options that all NFS commands share.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Ask this MOUNT service for the handle of an export, over the host's TCP, instead of the
    /// server over RDMA
    #[arg(long, value_name = "HOST:PORT")]
    mount: Option<String>,
    /// Version of RPC-over-RDMA (auto: 2, or 1 if the server knows no other)
    #[arg(long, value_enum, value_name = "1|2|auto", default_value_t = RpcVersion::Auto, hide_possible_values = true)]
    rpc_version: RpcVersion,
    /// READs or WRITEs outstanding at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    depth: u8,
    /// The longest time that a call may take, including all reconnection attempts
    #[arg(long, value_name = "T", default_value = "60s")]
    timeout: Span,
    #[command(flatten)]
    mpa: MpaArgs,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    #[command(flatten)]
    rnic: RnicArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RpcVersion {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    Auto,
}

impl RpcVersion {
    fn speaks(self) -> Speaks {
        match self {
            RpcVersion::One => Speaks::V1,
            RpcVersion::Two => Speaks::V2,
            RpcVersion::Auto => Speaks::BOTH,
        }
    }
}

impl Common {
    fn pipeline(&self) -> Pipeline {
        Pipeline { depth: self.depth.into(), ..Pipeline::default() }
    }
}

/// Bytes for the queues, and for the Receives, of one connection.
const QUEUES: usize = 4 << 20;

/// Registered memory, in bytes, for the data that a connection sends and receives inline. The
/// calls' memory comes on top.
const INLINE: usize = 4 << 20;

/// Time for the last packets of a closed connection to be exchanged.
const LINGER: Duration = Duration::from_millis(100);

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    let (common, server) = match command {
        Command::Ls { target, common, .. }
        | Command::Cat { target, common }
        | Command::Stat { target, common } => (common, target),
        Command::Cp { from, to, common, .. } => match (from, to) {
            (Place::Remote(server), Place::Local(_)) | (Place::Local(_), Place::Remote(server)) => {
                (common, server)
            }
            _ => return Err(Failure::usage("one of FROM and TO is local, the other ADDR:/PATH")),
        },
    };
    common.rnic.check()?;
    let mpa = common.mpa.client()?;
    common.log.start();
    let stop = Stop::on_signals()?;
    let config = session::config(common, mpa);
    let mut rnic = common.rnic.open(common.mtu, config.memory + INLINE, QUEUES)?;
    let done = Session::open(common, server, config, &mut rnic, &stop)
        .and_then(|mut session| carry_out(command, &mut session));
    rnic.linger(LINGER);
    let done = done.map_err(|failure| explain(rnic.served().as_ref(), failure));
    if stop.is_set() { Err(Failure::failed("interrupted")) } else { done }
}

fn carry_out(command: &Command, session: &mut Session<'_>) -> Result<(), Failure> {
    match command {
        Command::Ls { long, .. } => {
            let found = session.find(true)?;
            show::list(session, &found, *long)
        }
        Command::Cat { target, .. } => {
            let found = session.find(true)?;
            if found.attributes.kind != FileType::Regular {
                return Err(Failure::failed(format!("{target} is no regular file")));
            }
            let mut out = stdout().lock();
            let sink = |piece: &[u8]| out.write_all(piece);
            session.nfs.read(found.handle, found.attributes.size, sink)?;
            out.flush()?;
            Ok(())
        }
        Command::Stat { target, .. } => {
            let found = session.find(false)?;
            let link = match found.attributes.kind {
                FileType::Symlink => Some(session.nfs.readlink(found.handle)?),
                _ => None,
            };
            say(&show::stat(target, &found.attributes, link.as_deref()));
            Ok(())
        }
        Command::Cp { recursive, verify, from, to, common } => {
            let mut copier = Copier::new(session, *recursive, *verify, common.log.quiet);
            match (from, to) {
                (Place::Remote(_), Place::Local(to)) => copier.download(to)?,
                (Place::Local(from), _) => copier.upload(from)?,
                // `run` has already refused a copy from server to server.
                (Place::Remote(_), Place::Remote(_)) => {}
            }
            let summary = copier.summary();
            // Dropping the copier removes its bar.
            drop(copier);
            if !common.log.quiet {
                say(&summary);
            }
            Ok(())
        }
    }
}
