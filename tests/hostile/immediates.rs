//! Immediate Data (RFC 7306) that differs from what the benchmark has announced to the perf
//! service: the service counts it, or ends that connection, and no other peer notices.

use heddle_testkit::mpa;

use crate::linux::{Client, PATIENCE, Rping};
use crate::net::{LINUX, Lab};
use crate::segments::{plain, u};
use crate::server::{PERF, Server};

/// Operations as a greeting numbers them, and the two modes.
const WRITE: u8 = 0;
const SEND: u8 = 2;
const WRITE_IMM: u8 = 3;
const SEND_IMM: u8 = 4;
const BW: u8 = 0;
const LAT: u8 = 1;
/// Twice the number of messages that one credit reports.
const DEPTH: u32 = 4;

/// Builds a greeting for messages of 8 bytes, all of which the service is to compare.
fn hello(op: u8, mode: u8) -> Vec<u8> {
    let mut b = vec![b'H', b'P', b'R', b'F', 2, op, mode, 1, 0, 0, 0, 8];
    b.extend(if mode == LAT { 1 } else { DEPTH }.to_be_bytes());
    b.extend([0; 8]);
    // STag 2 and 8 bytes from offset 0 on, for the answers of a ping-pong.
    b.extend([0, 0, 0, 2, 0, 0, 0, 0]);
    b.extend([0; 8]);
    b.extend([0, 0, 0, 0, 0, 0, 0, 8]);
    b
}

/// A message for the queue of Sends.
#[derive(Clone, Copy, Debug)]
enum Message {
    Immediate(u64),
    /// A Send of this many bytes.
    Send(usize),
}

use Message::{Immediate, Send};

/// A client of the service that has sent its greeting.
struct Peer {
    client: Client,
    msn: u32,
}

impl Peer {
    fn greet(lab: &Lab, op: u8, mode: u8) -> Peer {
        let mut client = Client::connect(lab, LINUX[0], PERF).expect("a connection");
        let reply = client.start(&mpa::request(&hello(op, mode))).expect("a Reply");
        assert!(!reply.rejected, "operation {op}, mode {mode}");
        Peer { client, msn: 0 }
    }

    /// Greets, asks for the client's memory, and waits until the service grants it.
    fn served(lab: &Lab, op: u8, mode: u8) -> Peer {
        let mut peer = Peer::greet(lab, op, mode);
        peer.say(&[Send(0)]);
        let grant = peer.client.recv(PATIENCE).expect("a grant").payload;
        assert_eq!((grant.len(), &grant[..4]), (32, &b"HPRF"[..]));
        peer
    }

    fn say(&mut self, messages: &[Message]) {
        let ulpdus = messages.iter().map(|m| {
            self.msn += 1;
            let at = [0, self.msn, 0];
            match *m {
                Immediate(data) => u(0x41, 0x48, 0, at, &data.to_be_bytes()),
                Send(len) => u(0x41, 0x43, 0, at, &vec![0x5a; len]),
            }
        });
        let ulpdus: Vec<_> = ulpdus.collect();
        self.client.say(&plain(&ulpdus)).expect("it is sent");
    }

    /// Receives the next credit: the number of messages taken, and of wrong messages among them.
    fn credit(&mut self) -> (u64, u64) {
        let m = self.client.recv(PATIENCE).expect("a credit");
        let n = |b: &[u8]| b.iter().fold(0, |v, x| v << 8 | u64::from(*x));
        assert_eq!((m.opcode, m.payload.len()), (3, 16), "{m:?}");
        (n(&m.payload[..8]), n(&m.payload[8..]))
    }

    /// Receives a Terminate and a FIN, and returns the code.
    fn terminate(&mut self) -> [u8; 2] {
        let m = self.client.recv(PATIENCE).expect("a Terminate");
        assert_eq!(m.opcode, 7, "{m:?}");
        assert_eq!(self.client.rest(), (vec![], None));
        [m.payload[0], m.payload[1]]
    }
}

/// Runs `f` with a server, beside an honest client.
fn beside_rping(f: impl Fn(&Lab, &Server)) {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut rping = Rping::connect(&lab, LINUX[1], 1000).expect("a connection");
    // Each round frees everything that such a client had, so the next round finds it again.
    for _ in 0..5 {
        f(&lab, &server);
        rping.ping().expect("the honest client is served");
    }
    server.assert_alive();
}

#[test]
fn test_wrong_immediate_data_is_counted_for_each_message() {
    beside_rping(|lab, _| {
        let cases: [([Message; 4], [u64; 2]); 5] = [
            ([Immediate(0), Immediate(1), Immediate(2), Immediate(3)], [0, 0]),
            ([Immediate(0), Immediate(0), Immediate(2), Immediate(u64::MAX)], [1, 2]),
            ([Immediate(1), Immediate(0), Immediate(2), Immediate(3)], [2, 2]),
            // The second value is in little-endian order instead of network order.
            ([Immediate(0), Immediate(1 << 56), Immediate(2), Immediate(3)], [1, 1]),
            // A Send without content consumes a receive as Immediate Data does.
            ([Immediate(0), Send(0), Immediate(2), Immediate(3)], [1, 1]),
        ];
        for (messages, wrong) in cases {
            let mut peer = Peer::served(lab, SEND_IMM, BW);
            for (half, n) in [2, 4].into_iter().enumerate() {
                peer.say(&messages[2 * half..n]);
                assert_eq!(peer.credit(), (n as u64, wrong[half]), "{messages:?}");
            }
        }
        // Send Immediate Data among Sends, and after Writes that never came.
        for op in [SEND, WRITE_IMM] {
            let mut peer = Peer::served(lab, op, BW);
            peer.say(&[Immediate(0), Immediate(1)]);
            assert_eq!(peer.credit(), (2, 2), "operation {op}");
        }
    });
}

#[test]
fn test_message_without_a_buffer_that_was_announced_is_terminated() {
    beside_rping(|lab, _| {
        // A benchmark of Writes accepts no messages: RFC 5041 section 8.2, invalid MSN, no buffer.
        let mut peer = Peer::served(lab, WRITE, BW);
        peer.say(&[Immediate(0)]);
        assert_eq!(peer.terminate(), [0x12, 0x02]);
        // Immediate Data needs no memory, so a Send with any content is too long for its receive.
        let mut peer = Peer::served(lab, SEND_IMM, BW);
        peer.say(&[Send(8)]);
        assert_eq!(peer.terminate(), [0x12, 0x05]);
        // Send one message more than there are receives, none of which the service has posted
        // again.
        let mut peer = Peer::greet(lab, SEND_IMM, BW);
        peer.say(&[Send(0), Immediate(0)]);
        assert_eq!(peer.terminate(), [0x12, 0x02]);
    });
}

#[test]
fn test_message_of_another_operation_ends_the_connection() {
    beside_rping(|lab, server| {
        // The service expected a Send that asks for memory.
        let mut peer = Peer::greet(lab, SEND_IMM, BW);
        peer.say(&[Immediate(0)]);
        assert_eq!(peer.client.rest(), (vec![], None), "no grant");
        // In a ping-pong, the answer would be of the other kind.
        let mut immediates = Peer::served(lab, SEND_IMM, LAT);
        immediates.say(&[Send(0)]);
        assert_eq!(immediates.client.rest(), (vec![], None), "no answer");
        let mut sends = Peer::served(lab, SEND, LAT);
        sends.say(&[Immediate(0)]);
        assert_eq!(sends.client.rest(), (vec![], None), "no answer");
        // The service answers a correct message with the value that it carried.
        let mut peer = Peer::served(lab, SEND_IMM, LAT);
        peer.say(&[Immediate(77)]);
        let m = peer.client.recv(PATIENCE).expect("an answer");
        assert_eq!((m.opcode, &m.payload[..]), (8, &[0, 0, 0, 0, 0, 0, 0, 77][..]));
        assert!(server.says(&["Immediate Data where a Send was to ask"], PATIENCE));
    });
}
