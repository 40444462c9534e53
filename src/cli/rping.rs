//! `heddle rping`

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use heddle::connection::{ListenParams, MpaOptions};
use heddle_services::Step;
use heddle_services::rping::{
    DEFAULT_PORT, DEFAULT_SIZE, MAX_SIZE, MIN_SIZE, RpingClient, RpingConfig, RpingServer,
};
use tracing_subscriber::filter::LevelFilter;

use super::mpa::MpaArgs;
use super::net::mtu;
use super::rnic::{Rnic, RnicArgs, explain};
use super::signals::Stop;
use super::{Failure, log, say};

/// The options are the options of rdma-core's rping, and options that select the RNIC.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Be the client
    #[arg(short = 'c', conflicts_with = "server", required_unless_present = "server")]
    client: bool,
    /// Be the server
    #[arg(short = 's')]
    server: bool,
    /// The server's address [default with -s: the first of --ip]
    #[arg(short = 'a', value_name = "ADDR", required_unless_present = "server")]
    addr: Option<IpAddr>,
    /// TCP port to connect to, or to listen on
    #[arg(
        short = 'p',
        value_name = "PORT",
        default_value_t = DEFAULT_PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    port: u16,
    /// Messages; 0 for no limit (the client decides when to stop)
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 0)]
    count: u64,
    /// Bytes of a message
    #[arg(short = 'S', value_name = "SIZE", default_value_t = DEFAULT_SIZE,
          value_parser = clap::value_parser!(u32).range(i64::from(MIN_SIZE)..=i64::from(MAX_SIZE)))]
    size: u32,
    /// Compare the returned data with the sent data
    #[arg(short = 'V')]
    validate: bool,
    /// Show the messages
    #[arg(short = 'v')]
    show: bool,
    /// Report each step
    #[arg(short = 'd')]
    debug: bool,
    /// With -s: serve one client after the other
    #[arg(short = 'P', conflicts_with = "client")]
    persistent: bool,
    #[command(flatten)]
    mpa: MpaArgs,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    #[command(flatten)]
    rnic: RnicArgs,
}

/// Bytes of registered memory for a server: four regions for each of its clients.
const MEMORY: usize = 64 << 20;

/// Bytes of registered memory for a client, besides its messages: an appliance charges the grants
/// of all programs of a user to one limit.
const CLIENT_MEMORY: usize = 1 << 20;

/// Bytes for queues: the queues of each of a server's connections take 2 KiB.
const QUEUES: usize = 4 << 20;

/// Time for the last packets of a closed connection to be exchanged.
const LINGER: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.rnic.check()?;
    log::start(if args.debug { LevelFilter::DEBUG } else { LevelFilter::WARN });
    let stop = Stop::on_signals()?;
    let mpa = if args.server { args.mpa.server()? } else { args.mpa.client()? };
    let own = args.rnic.net.addrs().next();
    let Some(ip) = args.addr.or(own) else {
        return Err(Failure::usage("-a is missing"));
    };
    let ours = args.rnic.socket.is_some() || ip.is_unspecified();
    if args.server && !ours && !args.rnic.net.has(ip) {
        return Err(Failure::usage(format!("-a {ip}: no --ip has that address")));
    }
    let addr = SocketAddr::new(ip, args.port);
    let messages = 2 * args.size as usize;
    let memory =
        if args.server { MEMORY } else { CLIENT_MEMORY + messages.next_multiple_of(1 << 20) };
    let mut rnic = args.rnic.open(args.mtu, memory, QUEUES)?;
    let result = if args.server {
        serve(args, &stop, &mut rnic, addr, mpa)
    } else {
        ping(args, &stop, &mut rnic, addr, mpa)
    };
    rnic.linger(LINGER);
    result.map_err(|failure| explain(rnic.served().as_ref(), failure))
}

fn ping(
    args: &Args,
    stop: &Stop,
    rnic: &mut Rnic,
    remote: SocketAddr,
    mpa: MpaOptions,
) -> Result<(), Failure> {
    let Args { count, size, validate, .. } = *args;
    let config = RpingConfig { remote, count, size, validate, mpa };
    let mut client = RpingClient::new(rnic.device(), config, args.show)?;
    loop {
        rnic.poll();
        if client.step()? == Step::Done {
            break;
        }
        if let Some(line) = client.take_line() {
            say(&format!("ping data: {line}\n"));
        }
        if stop.is_set() {
            client.stop();
        }
    }
    let verified = if validate { ", all of them as they went out" } else { "" };
    say(&format!("{} messages of {size} bytes to {remote} and back{verified}\n", client.done()));
    Ok(())
}

fn serve(
    args: &Args,
    stop: &Stop,
    rnic: &mut Rnic,
    addr: SocketAddr,
    mpa: MpaOptions,
) -> Result<(), Failure> {
    let params = ListenParams::default().mpa(mpa);
    let mut server = RpingServer::new(rnic.device(), addr, params, None, args.show)?;
    while !stop.is_set() && !server.is_listening()? {
        rnic.poll();
        server.step();
    }
    say(&format!("rping listening on {addr}\n"));
    while !stop.is_set() && (args.persistent || server.closed() == 0) {
        rnic.poll();
        if server.step() {
            // The listener fails if the appliance has ended this application or is itself gone.
            server.is_listening()?;
            for line in server.take_lines() {
                say(&format!("server ping data: {line}\n"));
            }
        }
        if !args.persistent
            && let Some(why) = server.failure()
        {
            return Err(Failure::failed(why));
        }
    }
    Ok(())
}
