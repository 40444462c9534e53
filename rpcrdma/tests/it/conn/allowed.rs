//! The operations that an end may perform. The model derives them only from the messages that the
//! end has received, however those messages came about.

use heddle_rpcrdma::conn::Access;
use heddle_rpcrdma::header::{Direction, Header, Versions, decode};
use heddle_rpcrdma::v1::Chunks;
use heddle_rpcrdma::{Limits, Segment, v1, v2};

use super::model::End;

/// Errors of a server that refuse unknown versions are outside flow control.
const VERSION_ERRORS: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Allowed {
    /// Memory that the peer's calls have named.
    memory: Vec<(Access, Segment)>,
    /// The highest credit field of the received messages, in version 1 and in version 2.
    credit: [u32; 2],
    /// Messages that may have ended a call.
    not_calls: u64,
}

impl Allowed {
    /// Records a message that the end is about to receive.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        // All messages begin with these words: XID, version, credit, and procedure or header type.
        if let Some(words) = bytes.first_chunk::<16>() {
            let word = |n: usize| words[n * 4..][..4].iter().fold(0, |w, &o| w << 8 | u32::from(o));
            if let version @ 1..=2 = word(1) {
                let most = &mut self.credit[version as usize - 1];
                *most = word(2).max(*most);
            }
        }
        let any = Versions::Open { v1: true, v2: true };
        let message = decode(bytes, any, &Limits::DEFAULT);
        match &message {
            Ok(message) if message.direction() == Some(Direction::Call) => match &message.header {
                Header::V1(v1::Header {
                    body: v1::Body::Msg(chunks) | v1::Body::NoMsg(chunks),
                    ..
                })
                | Header::V2(v2::Header { body: v2::Body::CallInline { chunks, .. }, .. }) => {
                    self.offered(chunks);
                }
                Header::V2(v2::Header {
                    body: v2::Body::CallExternal { call, chunks, .. },
                    ..
                }) => {
                    self.offered(&Chunks { reads: *call, ..Chunks::NONE });
                    self.offered(chunks);
                }
                _ => {}
            },
            _ => self.not_calls += 1,
        }
    }

    fn offered(&mut self, chunks: &Chunks<'_>) {
        let read = |s: heddle_rpcrdma::ReadSegment| (Access::RemoteRead, s.target);
        self.memory.extend(chunks.reads.segments().map(read));
        let room = chunks.writes.chunks().chain(chunks.reply).flat_map(|c| c.segments());
        self.memory.extend(room.map(|s| (Access::RemoteWrite, s)));
    }

    /// Asserts that the end has posted only allowed operations.
    pub(crate) fn check(&self, end: &End) {
        for (access, segment) in end.accesses() {
            let within = |(kind, all): &(Access, Segment)| {
                let skipped = segment.offset.checked_sub(all.offset);
                *kind == access
                    && all.handle == segment.handle
                    && skipped
                        .and_then(|n| n.checked_add(segment.length.into()))
                        .is_some_and(|end| end <= all.length.into())
            };
            assert!(self.memory.iter().any(within), "{segment:?} was not offered");
        }
        let counters = end.conn.counters();
        match end.conn.version() {
            Some(v1::VERSION) => {
                let outstanding = counters.calls_sent.saturating_sub(self.not_calls);
                assert!(outstanding <= self.credit[0].max(1).into(), "{counters:?}");
            }
            // The first message is always allowed, and one more is kept for a GRANT.
            Some(_) => {
                let most = u64::from(self.credit[1].max(1)) + 1 + VERSION_ERRORS;
                assert!(counters.sends <= most, "{counters:?}");
            }
            None => {}
        }
    }
}
