//! A TCP stack that receives frames from any sender, and what its user and the clock do in between.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use heddle_base::{Instant, Seed, Sum};
use heddle_tcp::fuzz::{Driver, Trusted};
use heddle_tcp::{
    Addressing, ByteQueue, Cidr, FrameOutcome, Stack, StackConfig, TxBody, Vid, Vlan,
};
use heddle_types::ConnId;

use crate::Seeds;
use crate::stream::record;

pub fn run(data: &[u8]) -> bool {
    heddle_tcp::fuzz::stack(data)
}

/// A record's first byte: a frame arrives, and a millisecond passes.
const FRAME: u8 = 4;
/// The user sends, or closes.
const SEND: u8 = 3;
const CLOSE: u8 = 1;

/// A client that keeps to the rules, whose frames are records for the stack under test.
struct Client {
    stack: Stack<ByteQueue>,
    conn: ConnId,
    now: Instant,
    target: Driver,
    /// Frames of both sides, and the records for the stack under test.
    frames: Vec<Vec<u8>>,
    input: Vec<u8>,
}

impl Client {
    fn new() -> Client {
        Client::in_vlan(None)
    }

    /// Returns a client in a VLAN, or in none.
    fn in_vlan(vid: Option<Vid>) -> Client {
        let third = if vid.is_some() { 10 } else { 0 };
        let addr = |last| IpAddr::V4(Ipv4Addr::new(10, 0, third, last));
        let cidr = Cidr::new(addr(2), 24).expect("a prefix");
        let mut net = Addressing::new(vec![cidr], Vec::new()).expect("an address");
        if let Some(vid) = vid {
            let vlan = Vlan::new(vid, net);
            net = Addressing::default().with_vlans(vec![vlan]).expect("a VLAN");
        }
        let config = StackConfig::of([2, 0, 0, 0, 0, 2], net, Seed::from_u64(2));
        let mut stack = Stack::new(config);
        let now = Instant::ZERO;
        let to = SocketAddr::from((addr(1), 80));
        let conn = stack.connect(now, to, Some(4000)).expect("room for it");
        let target = Driver::new().expect("a prefix");
        let (frames, input) = (Vec::new(), Vec::new());
        let mut client = Client { stack, conn, now, target, frames, input };
        client.settle();
        client
    }

    /// Makes a step of the stack under test; the client takes the frames that the stack sends.
    fn step(&mut self, control: u8, bytes: &[u8]) {
        self.input.extend(record(control, bytes));
        self.now = self.now + Duration::from_millis(1);
        let len = u8::try_from(bytes.len()).expect("a short one");
        for frame in self.target.step(control, len, bytes) {
            let outcome = self.stack.handle_frame(self.now, Trusted::new(frame.clone()));
            if let FrameOutcome::Conn { conn, acked, payload } = outcome {
                if let (Some(upto), Some(q)) = (acked, self.stack.user_mut(conn)) {
                    q.release(upto);
                }
                if let Some(p) = payload {
                    self.stack.accept_payload(self.now, conn, p.pos, p.len);
                }
            }
            self.frames.push(frame);
        }
    }

    /// Exchanges frames until the client has no more to send.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.stack.handle_timeouts(self.now);
            let mut said = Vec::new();
            while let Some(mut f) = self.stack.poll_transmit(self.now) {
                let mut body = Vec::new();
                match &f.body {
                    TxBody::None => {}
                    TxBody::Owned(b) => body.extend(b),
                    TxBody::Stream { conn, pos, len, .. } => {
                        let q = self.stack.user(*conn).expect("it is there");
                        q.copy(*pos, *len, &mut body);
                    }
                }
                f.finish_tcp_checksum(Sum::of(&body));
                said.push([&f.header[..], &body].concat());
            }
            for frame in &said {
                self.step(FRAME, frame);
                self.frames.push(frame.clone());
            }
            if said.is_empty() {
                break;
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stack.user_mut(self.conn).expect("it is there").push(bytes);
        self.stack.notify_send(self.conn);
        self.settle();
    }
}

/// Makes the exchange in which a client connects, both sides send, and both close.
fn whole(vid: Option<Vid>) -> Client {
    let mut c = Client::in_vlan(vid);
    c.send(&[0x5a; 100]);
    c.step(SEND, &[0xa5; 50]);
    c.settle();
    c.stack.close(c.conn);
    c.settle();
    c.step(CLOSE, &[]);
    c.settle();
    c
}

/// Returns the frames of this exchange.
pub(crate) fn conversation() -> Vec<Vec<u8>> {
    whole(None).frames
}

pub fn seeds() -> Seeds {
    let mut lost = Client::new();
    // The client does not acknowledge the stack's data for a while: seconds pass, eight at a time.
    lost.step(SEND, &[0xa5; 50]);
    for _ in 0..3 {
        lost.input.extend(record(13 << 4 | FRAME, &[]));
    }
    // The stack itself connects, and its peer answers only ARP.
    let active = [record(0, &[]), record(SEND, &[1; 20]), record(12 << 4 | FRAME, &[])].concat();
    let mut both = whole(None).input;
    both.extend(active);
    vec![
        ("connect".into(), Client::new().input),
        ("whole".into(), whole(None).input),
        ("unanswered".into(), lost.input),
        ("both-roles".into(), both),
        ("vlan".into(), whole(Vid::new(10)).input),
    ]
}
