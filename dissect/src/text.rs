//! Items as lines for people.

use core::fmt::{self, Display, Formatter, Write};

use crate::item::{ChunkName, ChunkOf, Item, Memory, Mpa, Place, Rdma, Rpc, Tcp, Transport, What};

/// Returns one line for an item, without an end of line. Shows times relative to `start`, which is
/// in nanoseconds since 1970. A verdict's text begins with `!!` after the addresses.
pub fn line(item: &Item, start: u64) -> String {
    let since = item.time.saturating_sub(start);
    let (s, us) = (since / 1_000_000_000, since % 1_000_000_000 / 1000);
    let mut out = format!("{s:>4}.{us:06} #{:<5} {} > {}  ", item.frame, item.from, item.to);
    // Ignore the result: writing to a string cannot fail.
    let _ = write!(out, "{}", item.what);
    out
}

impl Display for What {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            What::Tcp(tcp) => tcp.fmt(f),
            What::Mpa(mpa) => mpa.fmt(f),
            What::Rdma(rdma) => rdma.fmt(f),
            What::Rpcrdma(transport) => transport.fmt(f),
            What::Verdict(v) => write!(f, "!! {:?}: {}", v.rule, v.text),
        }
    }
}

impl Display for Tcp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Tcp::Retransmission { bytes } => write!(f, "TCP {bytes} bytes again"),
            Tcp::OutOfOrder { missing } => write!(f, "TCP ahead of {missing} bytes"),
            Tcp::Gap { bytes } => write!(f, "TCP {bytes} bytes are not in the capture"),
            Tcp::Resumed { bytes } => write!(f, "MPA FPDUs found again, {bytes} bytes not read"),
            Tcp::Reset => f.write_str("TCP reset"),
            Tcp::Fin => f.write_str("TCP end"),
        }
    }
}

impl Display for Mpa {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = if self.reply { "Reply" } else { "Request" };
        write!(f, "MPA {name} revision {}", self.revision)?;
        for (there, word) in [(self.reject, "reject"), (self.crc, "crc"), (self.markers, "markers")]
        {
            if there {
                write!(f, " {word}")?;
            }
        }
        if let (Some(ird), Some(ord)) = (self.ird, self.ord) {
            write!(f, " ird {ird} ord {ord}")?;
        }
        if let Some(first) = &self.ready_to_receive {
            write!(f, " peer-to-peer {}", first.join(","))?;
        }
        if let Some(p) = &self.rpcrdma {
            write!(f, " rpcrdma send {} receive {}", p.send_size, p.receive_size)?;
            if p.invalidate {
                f.write_str(" invalidate")?;
            }
        } else if self.private_data > 0 {
            write!(f, " private data {}", self.private_data)?;
        }
        Ok(())
    }
}

impl Display for Rdma {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.bytes)?;
        if let Some(place) = self.from_memory {
            write!(f, " from {place}")?;
        }
        if let Some(place) = self.to_memory {
            write!(f, " to {place}")?;
        }
        if let Some(handle) = self.invalidate {
            write!(f, " invalidates {handle:#010x}")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, " {reason}")?;
        }
        if let Some(of) = &self.chunk {
            write!(f, "  {of}")?;
        }
        if let Some(rpc) = &self.rpc {
            write!(f, "  {rpc}")?;
        }
        Ok(())
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}@{:#x}", self.handle, self.offset)
    }
}

impl Display for ChunkOf {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.chunk {
            ChunkName::Read { position } => write!(f, "read chunk at {position}")?,
            ChunkName::Call => f.write_str("call chunk")?,
            ChunkName::Write { index } => write!(f, "write chunk {index}")?,
            ChunkName::Reply => f.write_str("reply chunk")?,
        }
        write!(f, "+{} of {:#010x}", self.at, self.xid)
    }
}

impl Display for Transport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#010x} credits {}", self.header, self.xid, self.credits)?;
        if !matches!(self.version, 1 | 2) {
            write!(f, " version {}", self.version)?;
        }
        if let Some(error) = &self.error {
            write!(f, " {error}")?;
        }
        if let Some(remaining) = self.remaining {
            write!(f, " remaining {remaining}")?;
        }
        for property in &self.properties {
            match property.value {
                Some(value) => write!(f, " {}={value}", property.name)?,
                None => write!(f, " {}", property.name)?,
            }
        }
        if let Some(rpc) = &self.rpc {
            write!(f, "  {rpc}")?;
        }
        self.chunks(f)?;
        if let Some(handle) = self.may_invalidate {
            write!(f, " may-invalidate {handle:#010x}")?;
        }
        if let Some(handle) = self.invalidate {
            write!(f, " invalidates {handle:#010x}")?;
        }
        Ok(())
    }
}

impl Transport {
    fn chunks(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.call.is_empty() {
            write!(f, "  call[{}]", Segments(&self.call))?;
        }
        for chunk in &self.reads {
            write!(f, "  read[{}: {}]", chunk.position, Segments(&chunk.segments))?;
        }
        for chunk in &self.writes {
            write!(f, "  write[{}]", Segments(chunk))?;
        }
        match &self.reply {
            Some(reply) => write!(f, "  reply[{}]", Segments(reply)),
            None => Ok(()),
        }
    }
}

/// Segments of a chunk: length, then place.
struct Segments<'a>(&'a [Memory]);

impl Display for Segments<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, &Memory { handle, length, offset }) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{length} {}", Place { handle, offset })?;
        }
        Ok(())
    }
}

impl Display for Rpc {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (word, procedure) = match self {
            Rpc::Call { procedure, .. } => ("call", Some(procedure)),
            Rpc::Reply { procedure, .. } => ("reply", procedure.as_ref()),
        };
        f.write_str(word)?;
        match procedure.map(|p| (p, p.name)) {
            Some((_, Some((program, name)))) => write!(f, " {program} {name}")?,
            Some((p, None)) => {
                write!(f, " {}v{} procedure {}", p.program, p.program_version, p.procedure)?;
            }
            None => {}
        }
        match self {
            Rpc::Call { uid: Some(uid), .. } => write!(f, " uid {uid}"),
            Rpc::Call { .. } => Ok(()),
            Rpc::Reply { status, nfs_status: None, .. } => write!(f, " {status}"),
            Rpc::Reply { status, nfs_status: Some(n), .. } => write!(f, " {status} status {n}"),
        }
    }
}
