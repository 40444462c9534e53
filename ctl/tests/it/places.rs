//! Places in queues, between a worker on a thread of its own and a program.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::time::Duration;

use heddle_ctl::{EndpointConfig, Node};
use heddle_verbs::{
    AcceptParams, ConnectParams, Cq, CqeStatus, Data, Device, Ends, Qp, Queue, RecvWr, SendOp,
    SendWr,
};

const MESSAGES: usize = 500;

/// An end with queues of a single place each. The end sends a message for each message that comes.
struct End {
    qp: Qp,
    cq: Cq,
    /// Number of messages that the end may send before any message has come.
    ahead: usize,
    sent: usize,
    completed: usize,
    received: usize,
}

impl End {
    fn new(ends: &Ends, ahead: usize) -> End {
        let (qp, cq) = (ends.qp.clone(), ends.cq.clone());
        qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).unwrap();
        End { qp, cq, ahead, sent: 0, completed: 0, received: 0 }
    }

    fn is_through(&self) -> bool {
        self.completed == MESSAGES && self.received == MESSAGES
    }

    /// Posts as many requests as the completions seen so far have left places for.
    fn step(&mut self) {
        if self.sent == self.completed && self.sent < MESSAGES.min(self.received + self.ahead) {
            let op = SendOp::Send { solicited: false, invalidate: None };
            let wr = SendWr { wr_id: 1, op, data: Data::Sges(&[]), signaled: true, fence: false };
            self.qp.post_send(&wr).expect("the place of the Send before is free");
            self.sent += 1;
        }
        let Some(cqe) = self.cq.poll() else { return };
        assert_eq!(cqe.status, CqeStatus::Success);
        match cqe.queue {
            Queue::Sq => self.completed += 1,
            Queue::Rq => {
                self.received += 1;
                let wr = RecvWr { wr_id: 0, sges: &[] };
                self.qp.post_recv(&wr).expect("the place of the receive is free");
            }
        }
    }
}

fn narrow(device: &Device) -> Ends {
    Ends::with(device, device.alloc_pd().unwrap(), 8, |init| init.depths(1, 1)).unwrap()
}

/// A program that sees a completion may post to the place of its request, because the worker frees
/// the place before it writes the completion. The moment between the two is short, so it takes many
/// messages to hit it.
#[test]
fn test_send_queue_place_is_free_once_completion_is_polled() {
    let (eal, _turn) = crate::common::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    let (a, b) = (EndpointConfig::new(addr(1)), EndpointConfig::new(addr(2)));
    let (a, b) = Node::ring_pair(&eal, "places", &a, &b).unwrap();
    let listener = b.device().bind("10.0.0.2:7174").unwrap();
    let ends = narrow(a.device());
    let mut client = End::new(&ends, 1);
    let params = ConnectParams::new(ends.qp.clone());
    let connecting = a.device().dial_with("10.0.0.2:7174", params, ends).unwrap();
    let ends = narrow(b.device());
    let mut server = End::new(&ends, 0);
    let incoming = listener.request(Duration::from_secs(10)).unwrap();
    let accepted = incoming.accept_with(AcceptParams::new(ends.qp.clone()), ends).unwrap();
    let connected = connecting.wait().unwrap();
    while !(client.is_through() && server.is_through()) {
        client.step();
        server.step();
    }
    drop((accepted, connected));
}
