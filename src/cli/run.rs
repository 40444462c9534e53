//! `heddle run`: runs a program for libibverbs on an RNIC of this host.
//!
//! ```text
//!   heddle run ── joins ──▶ RNIC of a running appliance (--socket), or the user's private one,
//!      │                    which is started if there is none
//!      │ exec               ▲
//!      ▼                    │ connection that the program inherits and that keeps the RNIC alive
//!   program ────────────────┘
//! ```

mod check;
mod library;
mod probe;
mod program;
mod start;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use heddle_daemon::private::Place;
use heddle_socket::Client;

use super::Failure;
use program::Program;

/// The environment variable by which our library finds the RNIC.
const SOCKET: &str = "HEDDLE_SOCKET";

/// The process becomes the program, so signals and exit status are the program's.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Control socket of a running appliance (heddle serve)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Use the user's private RNIC, and start it if there is none: no device, no privileges,
    /// addresses 127.0.0.0/8 [default]
    #[arg(long, conflicts_with = "socket")]
    private: bool,
    /// Check and explain what works here and what does not; run nothing
    #[arg(long)]
    check: bool,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "check"
    )]
    program: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.check {
        return check::run(args);
    }
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Failure::usage("there is no program to run"));
    };
    let found = Program::find(program).map_err(Failure::failed)?;
    found.check().map_err(Failure::failed)?;
    let library = library::find().map_err(Failure::failed)?;
    let socket = match &args.socket {
        Some(socket) => {
            Client::connect(socket)?;
            absolute(socket)?
        }
        None => {
            let place = place()?;
            start::join(&place).map_err(Failure::failed)?;
            place.socket
        }
    };
    let path =
        library::search_path(&library, env::var_os(library::SEARCH)).map_err(Failure::failed)?;
    let mut command = Command::new(found.path());
    command.arg0(program).args(rest).env(SOCKET, socket).env(library::SEARCH, path);
    let e = command.exec();
    Err(Failure::failed(format!("{} does not start: {e}", found.path().display())))
}

/// Returns the place of the user's private RNIC.
fn place() -> Result<Place, Failure> {
    let runtime = env::var_os("XDG_RUNTIME_DIR");
    Place::of_user(runtime.as_deref().map(Path::new)).map_err(Failure::failed)
}

/// Makes a path absolute, because the program may change its working directory.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(path)
}
