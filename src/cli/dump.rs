//! `heddle dump`

mod file;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use heddle_dissect::{Decoder, Item, Summary, line};

use super::Failure;
use file::Capture;

/// Show the contents of a capture of iWARP connections: notable TCP events, the MPA start-up, RDMA
/// messages, and the transport messages of RPC-over-RDMA, versions 1 and 2, with the RPC calls and
/// replies in them. Each breach of a rule has a line of its own, which begins with `!!`.
///
/// Lines are in the order in which items were complete: time since the first frame, number of the
/// frame, sender and receiver, and the item. The program follows a connection from its start-up on,
/// which has to be in the capture.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file, pcap or pcapng, of Ethernet frames; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only connections of this TCP port, whose messages the program decodes as RPC-over-RDMA
    /// whatever they look like (as on port 20049)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// A JSON document for each line, and one with the counts at the end
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let unreadable =
        |e: file::Error| Failure::failed(format!("cannot read {}: {e}", args.file.display()));
    let bytes = open(&args.file).map_err(|e| unreadable(e.into()))?;
    let mut capture = Capture::new(bytes).map_err(unreadable)?;
    let mut show = Show { out: BufWriter::new(io::stdout().lock()), json: args.json, start: None };
    let mut decoder = Decoder::new(args.port);
    let mut items = Vec::new();
    let read = loop {
        match capture.next() {
            Ok(Some((time, frame))) => {
                show.start.get_or_insert(time);
                decoder.frame(time, &frame, &mut items);
            }
            Ok(None) => break Ok(()),
            // Show the frames before the damage, too.
            Err(e) => break Err(unreadable(e)),
        }
        if is_gone(show.items(&mut items))? {
            return Ok(());
        }
    };
    decoder.finish(&mut items);
    if is_gone(show.items(&mut items))? || is_gone(show.summary(&decoder.summary()))? {
        return Ok(());
    }
    read
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(File::open(path)?))
}

/// Returns true if the reader of the output has closed it, which is not an error.
fn is_gone(shown: io::Result<()>) -> Result<bool, Failure> {
    match shown {
        Ok(()) => Ok(false),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(true),
        Err(e) => Err(Failure::failed(format!("cannot write: {e}"))),
    }
}

struct Show<W> {
    out: W,
    json: bool,
    /// Time of the first frame, in nanoseconds since 1970.
    start: Option<u64>,
}

impl<W: Write> Show<W> {
    fn items(&mut self, items: &mut Vec<Item>) -> io::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        for item in items.drain(..) {
            if self.json {
                serde_json::to_writer(&mut self.out, &item)?;
                writeln!(self.out)?;
            } else {
                writeln!(self.out, "{}", line(&item, self.start.unwrap_or(item.time)))?;
            }
        }
        // A capture may come from a program that is still capturing, so show each frame at once.
        self.out.flush()
    }

    fn summary(&mut self, s: &Summary) -> io::Result<()> {
        if self.json {
            let document = serde_json::json!({ "kind": "summary", "summary": s });
            writeln!(self.out, "{document}")?;
        } else {
            let Summary { frames, segments, not_followed, connections, forgotten, verdicts } = s;
            writeln!(
                self.out,
                "{frames} frames, {segments} TCP segments ({not_followed} not followed), \
                 {connections} MPA connections ({forgotten} forgotten), {verdicts} verdicts"
            )?;
        }
        self.out.flush()
    }
}
