//! `heddle bench --perftest` with servers that answer as perftest's do up to a point, and then
//! send what no client has asked for.

use std::time::{Duration, Instant};

use heddle_base::units::{Size, Sizes};
use heddle_dataplane::{Clock, Eal};
use heddle_perf::spec::{BenchSpec, Until};
use heddle_perf::workload::{Peer, PerftestClient, Run, Workload, WorkloadError};
use heddle_services::bench::{Mode, Op};
use heddle_verbs::{
    AcceptParams, CmEvent, CmId, Cqe, CqeOp, CqeStatus, Data, Device, DisconnectReason,
    ListenParams, ListenerId, RecvWr, SendOp, SendWr,
};

use crate::common::{Net, Raw, eal, server};

const PORT: u16 = 18_515;

/// A message of the run.
const SIZE: Size = Size(64);

/// Room for the longest message, in each half of a region.
const ROOM: usize = 128;

/// The parameter messages before the operations of `ib_send_lat`, the last four with the queue
/// pair.
const MESSAGES: usize = 10;
const WITH_QUEUE_PAIR: usize = 6;

/// The parameter messages before the data connection.
const BEFORE_DATA: usize = 5;

/// The time for which nothing listens.
const DEAF: Duration = Duration::from_millis(200);

/// The fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// It answers the version with a message one byte shorter.
    ShortAnswer,
    /// It answers the version with a message one byte longer than the client's receive.
    LongAnswer,
    /// It never names a queue pair.
    NoQueuePair,
    /// It sends a parameter message during the operations.
    Parameter,
    /// It answers one message of the run with two.
    TwoEchoes,
    /// It answers a message of the run with one that is a byte shorter.
    ShortEcho,
    /// It closes the data connection during the operations.
    Close,
}

/// A server that is `wrong`, and its end of both connections. As perftest's it stops listening after
/// the first connection, and listens anew a while after the last message before the second.
struct Server {
    wrong: Wrong,
    parameters: Raw,
    data: Raw,
    /// The connections that have not ended.
    open: Vec<CmId>,
    answered: usize,
    listener: Option<ListenerId>,
    /// The time at which the server listens anew.
    listens: Option<Instant>,
}

impl Server {
    fn new(net: &Net, wrong: Wrong) -> Server {
        let raw = || {
            let raw = Raw::new(&net.server, 2 * ROOM);
            (0..4).for_each(|_| receive(&raw));
            raw
        };
        let (parameters, data) = (raw(), raw());
        let (open, params) = (Vec::new(), ListenParams::default());
        let listening = net.server.device().listen(server(PORT), params, &parameters.events);
        let listener = Some(listening.unwrap());
        Server { wrong, parameters, data, open, answered: 0, listener, listens: None }
    }

    fn step(&mut self, device: &Device) {
        if self.listens.take_if(|time| *time <= Instant::now()).is_some() {
            let (params, events) = (ListenParams::default(), &self.parameters.events);
            self.listener = Some(device.listen(server(PORT), params, events).unwrap());
        }
        while let Some(event) = self.parameters.events.poll() {
            match event {
                CmEvent::ConnectRequest { id, .. } => {
                    let raw = if self.open.is_empty() { &self.parameters } else { &self.data };
                    device.accept(id, AcceptParams::new(raw.qp.clone())).unwrap();
                    self.open.push(id);
                    device.unlisten(self.listener.take().unwrap()).unwrap();
                }
                CmEvent::Disconnected { id, .. } => self.open.retain(|&open| open != id),
                _ => {}
            }
        }
        while let Some(len) = received(&self.parameters) {
            self.answer(len);
        }
        while let Some(len) = received(&self.data) {
            match self.wrong {
                Wrong::TwoEchoes => (0..2).for_each(|_| send(&self.data, len)),
                Wrong::ShortEcho => send(&self.data, len - 1),
                Wrong::Close => self.open.drain(1..).for_each(|id| device.disconnect(id).unwrap()),
                Wrong::Parameter => {
                    send(&self.parameters, 8);
                    send(&self.data, len);
                }
                _ => send(&self.data, len),
            }
        }
    }

    /// Answers a parameter message of `len` bytes.
    fn answer(&mut self, len: usize) {
        let mut message = vec![0; len];
        self.parameters.mr.read(ROOM, &mut message);
        let len = match self.wrong {
            Wrong::ShortAnswer => len - 1,
            Wrong::LongAnswer => ROOM,
            _ => len,
        };
        if self.answered >= WITH_QUEUE_PAIR && self.wrong != Wrong::NoQueuePair {
            message[8..12].copy_from_slice(&self.data.qp.qpn().0.max(1).to_be_bytes());
        } else if message.len() == 56 {
            message.fill(0);
        }
        self.parameters.mr.write(0, &message);
        send(&self.parameters, len);
        self.answered += 1;
        if self.answered == BEFORE_DATA {
            self.listens = Some(Instant::now() + DEAF);
        }
    }
}

/// Posts a receive for the second half of the region.
fn receive(raw: &Raw) {
    raw.qp.post_recv(&RecvWr { wr_id: 0, sges: &[raw.mr.sge(ROOM, ROOM)] }).unwrap();
}

/// Returns the length of the next message, and posts its receive again.
fn received(raw: &Raw) -> Option<usize> {
    let is_message = |cqe: &Cqe| cqe.op == CqeOp::Recv && cqe.status.is_success();
    let cqe = core::iter::from_fn(|| raw.cq.poll()).find(is_message)?;
    receive(raw);
    Some(cqe.len as usize)
}

/// Sends the first bytes of the region.
fn send(raw: &Raw, len: usize) {
    let op = SendOp::Send { solicited: false, invalidate: None };
    let sges = [raw.mr.sge(0, len)];
    let data = Data::Sges(&sges);
    // A connection that the client has ended takes no message.
    let _ = raw.qp.post_send(&SendWr { wr_id: 1, op, data, signaled: false, fence: false });
}

/// Runs a client against a server that is `wrong`, and returns the client's error.
fn error(eal: &Eal, wrong: Wrong) -> (WorkloadError, usize) {
    let mut net = Net::new(eal);
    let spec = BenchSpec {
        op: Op::Send,
        mode: Mode::Lat,
        until: Until::Iters(1000),
        sizes: Sizes::one(SIZE),
        peer: Peer::Perftest,
        ..BenchSpec::default()
    };
    spec.check().unwrap();
    let mut peer = Server::new(&net, wrong);
    let run = Run::new(&spec, SIZE);
    let device = net.client.device().clone();
    let mut client = PerftestClient::new(&device, &Clock::system(), server(PORT), run).unwrap();
    let device = net.server.device().clone();
    let mut error = None;
    net.until("an error", || {
        peer.step(&device);
        error = client.step().err();
        error.is_some()
    });
    // The client gives up, and neither connection stays behind.
    client.abandon();
    net.until("the ends of its connections", || {
        peer.step(&device);
        peer.open.is_empty()
    });
    (error.expect("it was waited for"), peer.answered)
}

#[test]
fn test_bench_refuses_parameters_that_no_server_of_perftest_sends() {
    let (eal, _turn) = eal();
    let (e, answered) = error(&eal, Wrong::ShortAnswer);
    assert!(matches!(e, WorkloadError::Stray(15)) && answered == 1, "{e:?}");
    let (e, answered) = error(&eal, Wrong::LongAnswer);
    let is_too_long = |s| s == CqeStatus::LocalLength;
    assert!(matches!(e, WorkloadError::Completion { status, .. } if is_too_long(status)), "{e:?}");
    assert_eq!(answered, 1);
    let (e, answered) = error(&eal, Wrong::NoQueuePair);
    assert!(matches!(e, WorkloadError::Misfit { .. }) && answered == MESSAGES, "{e:?}");
}

#[test]
fn test_bench_refuses_messages_that_it_has_not_asked_a_server_of_perftest_for() {
    let (eal, _turn) = eal();
    let (e, _) = error(&eal, Wrong::TwoEchoes);
    assert!(matches!(e, WorkloadError::Stray(64)), "{e:?}");
    let (e, _) = error(&eal, Wrong::ShortEcho);
    assert!(matches!(e, WorkloadError::Stray(63)), "{e:?}");
    let (e, _) = error(&eal, Wrong::Parameter);
    assert!(is_terminated(&e), "{e:?}");
    let (e, _) = error(&eal, Wrong::Close);
    assert!(matches!(e, WorkloadError::Disconnected(DisconnectReason::Orderly)), "{e:?}");
}

/// Returns true for the end of a connection to which the client's RNIC sent a Terminate.
fn is_terminated(e: &WorkloadError) -> bool {
    matches!(e, WorkloadError::Disconnected(DisconnectReason::LocalTerminate(_)))
}
