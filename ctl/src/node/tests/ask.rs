//! Questions to a node while it runs.

use std::sync::mpsc::{Receiver, channel};

use heddle_dataplane::INSPECT_MAX;
use heddle_types::{CmId, WorkerId};

use super::*;
use crate::{Asker, ConnPage, ConnStatus, Kill, Question, Reply};

/// Returns a reply, and the receiver of its answer.
fn reply<T: Send + 'static>() -> (Reply<T>, Receiver<T>) {
    let (to, from) = channel();
    (Reply::new(move |answer| drop(to.send(answer))), from)
}

fn page(asker: &Asker, after: Option<CmId>) -> ConnPage {
    let (reply, answer) = reply();
    asker.ask(Question::Conns { after, without: Vec::new(), reply }).unwrap();
    answer.recv_timeout(PROMPT).unwrap()
}

fn all(asker: &Asker) -> Vec<ConnStatus> {
    let mut page_ = page(asker, None);
    let mut all = std::mem::take(&mut page_.conns);
    while let Some(next) = page_.next {
        page_ = page(asker, Some(next));
        all.append(&mut page_.conns);
    }
    all
}

fn kill(asker: &Asker, id: CmId, how: Kill) -> bool {
    let (reply, answer) = reply();
    asker.ask(Question::Kill { id, how, reply }).unwrap();
    answer.recv_timeout(PROMPT).unwrap()
}

#[test]
fn test_listed_connection_has_facts_from_every_layer() {
    let p = pair("ask0");
    let (_listener, here, there) = p.connect();
    let memory = there.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    here.post_recv(&RecvWr::new(1, &[])).unwrap();
    there.post_send(&SendWr::send(2, &[memory.sge(0, 0)])).unwrap();
    assert!(here.wait(PROMPT).unwrap().status.is_success());
    // The control plane hears of the first FPDU after the application does.
    let until = Instant::now() + PROMPT;
    let conns = loop {
        let conns = all(&p.node.asker());
        if conns.iter().all(|c| c.view.state == "running") {
            break conns;
        }
        assert!(Instant::now() < until, "{conns:?}");
        thread::sleep(Duration::from_millis(1));
    };
    let [conn] = &conns[..] else { panic!("there is one") };
    assert_eq!(conn.view.local.port(), 7174);
    let agreed = conn.agreed.expect("it is established");
    assert_eq!((agreed.revision, agreed.crc), (2, true));
    let qp = conn.qp.expect("it has one");
    assert_eq!((qp.qpn, qp.state), (here.qp().qpn(), heddle_verbs::QpState::Rts));
    let facts = conn.facts.as_ref().expect("the worker has it");
    assert_eq!(facts.engine.state, heddle_tcp::State::Established);
    assert!(
        facts.engine.received > 0 && facts.engine.tcp.cwnd > 0 && facts.engine.emss > 1000,
        "{facts:?}"
    );
    assert_eq!(facts.engine.qp.expect("it runs").rx_sends, 1);

    let (reply, control) = reply();
    p.node.asker().ask(Question::Control { reply }).unwrap();
    let control = control.recv_timeout(PROMPT).unwrap();
    assert_eq!((control.gauges.conns, control.listeners.len()), (1, 1));
    let (reply, snapshot) = self::reply();
    p.node.asker().ask(Question::Snapshot { worker: WorkerId(0), reply }).unwrap();
    assert_eq!(snapshot.recv_timeout(PROMPT).unwrap().engine.qps.rx_sends, 1);
}

/// There are more connections than one answer of a worker holds, and none is listed twice.
#[test]
fn test_asker_lists_many_connections_page_by_page() {
    let p = pair("ask1");
    let listener = p.node.device().bind("10.0.0.1:7174").unwrap();
    let mut conns = Vec::new();
    for _ in 0..INSPECT_MAX + 3 {
        let connecting = p.peer.device().dial("10.0.0.1:7174").unwrap();
        conns.push((listener.accept().unwrap(), connecting.wait().unwrap()));
    }
    let first = page(&p.node.asker(), None);
    assert_eq!((first.conns.len(), first.next.is_some()), (INSPECT_MAX, true));
    let all = all(&p.node.asker());
    assert_eq!(all.len(), conns.len());
    assert!(all.windows(2).all(|w| w[0].view.id < w[1].view.id));
    assert!(all.iter().all(|c| c.facts.is_some()));
}

#[test]
fn test_killed_connection_ends_on_both_sides_with_requested_reason() {
    for (n, how, there_hears) in [
        (2, Kill::Reset, DisconnectReason::Tcp(CloseReason::Reset)),
        (3, Kill::InOrder, DisconnectReason::Orderly),
    ] {
        let p = pair(&format!("ask{n}"));
        let (_listener, mut here, mut there) = p.connect();
        let asker = p.node.asker();
        let id = all(&asker)[0].view.id;
        assert!(kill(&asker, id, how));
        assert_eq!(end_of(&mut there), there_hears, "{how:?}");
        // The application hears of the end as of any other.
        end_of(&mut here);
        assert!(!kill(&asker, id, how), "it is gone");
        assert!(!kill(&asker, CmId(u64::MAX), how));
    }
}

/// A worker that never answers does not hold an answer back for ever: when the worker ends, the
/// answer comes without the worker's facts.
#[test]
fn test_asker_is_answered_without_facts_when_worker_ends() {
    let p = pair("ask4");
    let (_listener, _here, _there) = p.connect();
    p.orders[0].pause.store(true, Ordering::Relaxed);
    let (reply, answer) = reply();
    p.node.asker().ask(Question::Conns { after: None, without: Vec::new(), reply }).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert!(answer.try_recv().is_err(), "the worker has not been asked");
    p.orders[0].panic.store(true, Ordering::Relaxed);
    let page: ConnPage = answer.recv_timeout(PROMPT).unwrap();
    assert!(page.conns.iter().all(|c| c.facts.is_none()));
}

#[test]
fn test_asker_lists_connections_without_facts_of_worker_that_it_leaves_out() {
    let p = pair("ask6");
    let (_listener, _here, _there) = p.connect();
    p.orders[0].pause.store(true, Ordering::Relaxed);
    let (reply, answer) = reply();
    let question = Question::Conns { after: None, without: vec![WorkerId(0)], reply };
    p.node.asker().ask(question).unwrap();
    let page: ConnPage = answer.recv_timeout(PROMPT).unwrap();
    assert_eq!((page.conns.len(), page.silent.len()), (1, 0));
    assert!(page.conns[0].facts.is_none());
    // The connection has a name by which it can be ended.
    assert!(kill(&p.node.asker(), page.conns[0].view.id, Kill::Reset));
    p.orders[0].pause.store(false, Ordering::Relaxed);
}

/// A program may watch an RNIC for hours while a worker hangs: the control plane serves
/// applications all the same, and names the worker.
#[test]
fn test_control_plane_refuses_questions_to_worker_that_leaves_many_unanswered() {
    const MORE_THAN_THE_RING: usize = 5000;
    let p = pair("ask7");
    let (_listener, _here, _there) = p.connect();
    p.orders[0].pause.store(true, Ordering::Relaxed);
    let asker = p.node.asker();
    let send = |question: fn(&Asker) -> Result<(), heddle_verbs::DeviceError>| {
        // The control thread takes the questions as fast as it can.
        while question(&asker).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
    };
    for _ in 0..MORE_THAN_THE_RING {
        send(|asker| {
            let reply = reply().0;
            asker.ask(Question::Conns { after: None, without: Vec::new(), reply })
        });
        send(|asker| asker.ask(Question::Snapshot { worker: WorkerId(0), reply: reply().0 }));
    }
    let silent = page(&asker, None);
    assert_eq!((silent.silent, silent.conns.len()), (vec![WorkerId(0)], 1));
    let (reply, control) = reply();
    asker.ask(Question::Control { reply }).unwrap();
    assert_eq!(control.recv_timeout(PROMPT).unwrap().gauges.conns, 1);
    p.orders[0].pause.store(false, Ordering::Relaxed);
    let until = Instant::now() + PROMPT;
    while page(&asker, None).conns[0].facts.is_none() {
        assert!(Instant::now() < until, "the worker answers again");
    }
}

/// Each worker names its own connections, so the same name may occur at several workers.
#[test]
fn test_asker_matches_connections_with_facts_of_their_own_worker() {
    let w = workers::workers("ask5", 2, 1);
    let listener = w.peer.device().bind("10.0.0.2:7174").unwrap();
    let mut conns = Vec::new();
    let mut of_worker = [0; 2];
    while of_worker.iter().any(|n| *n < 2) {
        let (here, there, worker) = w.dial(&listener);
        of_worker[worker] += 1;
        conns.push((here, there, worker));
    }
    // Each connection has sent another number of bytes.
    for (n, (here, there, _)) in conns.iter().enumerate() {
        (0..=n).for_each(|_| workers::talk(here, there, 1));
    }
    let seen = all(&w.node.asker());
    assert_eq!(seen.len(), conns.len());
    let mut names = Vec::new();
    for (n, (here, _, worker)) in conns.iter().enumerate() {
        let its = |c: &&ConnStatus| c.qp.is_some_and(|qp| qp.qpn == here.qp().qpn());
        let c = seen.iter().find(its).expect("it is listed");
        assert_eq!(c.view.worker, WorkerId(*worker));
        let facts = c.facts.as_ref().expect("its worker has it");
        assert_eq!(facts.engine.qp.expect("it runs").tx_bytes, 16 * (n as u64 + 1));
        names.push(facts.conn);
    }
    names.sort();
    assert!(names.windows(2).any(|w| w[0] == w[1]), "no name is two workers': {names:?}");
}
