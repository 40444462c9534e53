//! Decides where an example runs. Without arguments both sides of the example are in this process,
//! each with an RNIC of its own, and rings connect the RNICs: the example needs no NIC and no
//! privileges. With `--socket PATH` one of the sides runs, on the RNIC of a running `heddle serve`;
//! nothing else about the side is different.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use clap::Parser;
use heddle::{Device, Eal, EalConfig, EndpointConfig, Node};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// An example of Heddle. Without arguments both of its sides run in this process.
#[derive(Parser)]
struct Args {
    /// Use the RNIC of a running `heddle serve` through its control socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Be the server, at this address of that RNIC
    #[arg(long, value_name = "ADDR:PORT", requires = "socket")]
    listen: Option<SocketAddr>,
    /// Be the client of the server at this address
    #[arg(long, value_name = "ADDR:PORT", requires = "socket", conflicts_with = "listen")]
    connect: Option<SocketAddr>,
}

/// Runs the example `name`. `listen` prepares everything that `server` needs, and returns when
/// clients may come.
pub(crate) fn run<L: Send + 'static>(
    name: &str,
    listen: impl FnOnce(&Device, SocketAddr) -> Result<L>,
    server: impl FnOnce(&Device, L) -> Result<()> + Send + 'static,
    client: impl FnOnce(&Device, SocketAddr) -> Result<()>,
) -> Result<()> {
    let args = Args::parse();
    match (&args.socket, args.listen, args.connect) {
        (None, ..) => {
            let eal = Eal::init(&EalConfig::default())?;
            let a = EndpointConfig::new(vec!["10.0.0.1/24".parse()?]);
            let b = EndpointConfig::new(vec!["10.0.0.2/24".parse()?]);
            let (a, b) = Node::ring_pair(&eal, name, &a, &b)?;
            let addr = "10.0.0.2:7174".parse()?;
            let (device, listener) = (b.device().clone(), listen(b.device(), addr)?);
            let server = thread::spawn(move || server(&device, listener));
            client(a.device(), addr)?;
            server.join().unwrap_or_else(|_| Err("the server has failed".into()))
        }
        (Some(socket), Some(addr), _) => {
            let device = Device::open(socket)?;
            let listener = listen(&device, addr)?;
            println!("server: listening on {addr}");
            server(&device, listener)
        }
        (Some(socket), _, Some(addr)) => client(&Device::open(socket)?, addr),
        (Some(_), None, None) => Err("--socket needs --listen or --connect".into()),
    }
}
