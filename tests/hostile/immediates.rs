//! Immediate Data (RFC 7306) for the perf service that is not what the benchmark has announced: it
//! is counted, or ends that connection, and nobody else hears of it.

use crate::linux::{Client, PATIENCE, Rping};
use crate::mpa;
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
/// As many as a credit tells of at a time, twice.
const DEPTH: u32 = 4;

/// A greeting for messages of 8 octets, all of which are to be compared.
fn hello(op: u8, mode: u8) -> Vec<u8> {
    let mut b = vec![b'H', b'P', b'R', b'F', 2, op, mode, 1, 0, 0, 0, 8];
    b.extend(if mode == LAT { 1 } else { DEPTH }.to_be_bytes());
    b.extend([0; 8]);
    // STag 2 and 8 octets from 0 on, where the answers of a ping-pong go.
    b.extend([0, 0, 0, 2, 0, 0, 0, 0]);
    b.extend([0; 8]);
    b.extend([0, 0, 0, 0, 0, 0, 0, 8]);
    b
}

/// What goes to the queue of Sends.
#[derive(Clone, Copy, Debug)]
enum Message {
    Immediate(u64),
    /// A Send of so many octets.
    Send(usize),
}

use Message::{Immediate, Send};

/// A client of the service that has greeted.
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

    /// One that has asked for its memory and has it.
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

    /// The next credit: messages taken, and wrong ones among them.
    fn credit(&mut self) -> (u64, u64) {
        let m = self.client.recv(PATIENCE).expect("a credit");
        let n = |b: &[u8]| b.iter().fold(0, |v, x| v << 8 | u64::from(*x));
        assert_eq!((m.opcode, m.payload.len()), (3, 16), "{m:?}");
        (n(&m.payload[..8]), n(&m.payload[8..]))
    }

    /// The code of the Terminate that comes now, and a FIN.
    fn terminate(&mut self) -> [u8; 2] {
        let m = self.client.recv(PATIENCE).expect("a Terminate");
        assert_eq!(m.opcode, 7, "{m:?}");
        assert_eq!(self.client.rest(), (vec![], None));
        [m.payload[0], m.payload[1]]
    }
}

/// A server and an honest client of it.
fn beside_rping(f: impl Fn(&Lab, &Server)) {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut rping = Rping::connect(&lab, LINUX[1], 1000).expect("a connection");
    // Whatever such a client had is there for the next.
    for _ in 0..5 {
        f(&lab, &server);
        rping.ping().expect("the honest client is served");
    }
    server.assert_alive();
}

#[test]
fn test_wrong_immediate_data_is_counted_message_by_message() {
    beside_rping(|lab, _| {
        let cases: [([Message; 4], [u64; 2]); 5] = [
            ([Immediate(0), Immediate(1), Immediate(2), Immediate(3)], [0, 0]),
            ([Immediate(0), Immediate(0), Immediate(2), Immediate(u64::MAX)], [1, 2]),
            ([Immediate(1), Immediate(0), Immediate(2), Immediate(3)], [2, 2]),
            // In the order of the machine.
            ([Immediate(0), Immediate(1 << 56), Immediate(2), Immediate(3)], [1, 1]),
            // A Send without content takes a receive as Immediate Data does.
            ([Immediate(0), Send(0), Immediate(2), Immediate(3)], [1, 1]),
        ];
        for (messages, wrong) in cases {
            let mut peer = Peer::served(lab, SEND_IMM, BW);
            for (half, n) in [2, 4].into_iter().enumerate() {
                peer.say(&messages[2 * half..n]);
                assert_eq!(peer.credit(), (n as u64, wrong[half]), "{messages:?}");
            }
        }
        // Immediate Data among Sends, and behind Writes that never came.
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
        // A benchmark of Writes takes no messages: RFC 5041 section 8.2, invalid MSN, no buffer.
        let mut peer = Peer::served(lab, WRITE, BW);
        peer.say(&[Immediate(0)]);
        assert_eq!(peer.terminate(), [0x12, 0x02]);
        // Immediate Data needs no memory, so a Send of anything is too long for its receive.
        let mut peer = Peer::served(lab, SEND_IMM, BW);
        peer.say(&[Send(8)]);
        assert_eq!(peer.terminate(), [0x12, 0x05]);
        // One more than there are receives, none of which has been posted again.
        let mut peer = Peer::greet(lab, SEND_IMM, BW);
        peer.say(&[Send(0), Immediate(0)]);
        assert_eq!(peer.terminate(), [0x12, 0x02]);
    });
}

#[test]
fn test_message_of_another_operation_ends_the_connection() {
    beside_rping(|lab, server| {
        // Where a Send was to ask for memory.
        let mut peer = Peer::greet(lab, SEND_IMM, BW);
        peer.say(&[Immediate(0)]);
        assert_eq!(peer.client.rest(), (vec![], None), "no grant");
        // In a ping-pong whose answer would be of the other kind.
        let mut immediates = Peer::served(lab, SEND_IMM, LAT);
        immediates.say(&[Send(0)]);
        assert_eq!(immediates.client.rest(), (vec![], None), "no answer");
        let mut sends = Peer::served(lab, SEND, LAT);
        sends.say(&[Immediate(0)]);
        assert_eq!(sends.client.rest(), (vec![], None), "no answer");
        // A right one is answered with what it brought.
        let mut peer = Peer::served(lab, SEND_IMM, LAT);
        peer.say(&[Immediate(77)]);
        let m = peer.client.recv(PATIENCE).expect("an answer");
        assert_eq!((m.opcode, &m.payload[..]), (8, &[0, 0, 0, 0, 0, 0, 0, 77][..]));
        assert!(server.says(&["Immediate Data where a Send was to ask"], PATIENCE));
    });
}
