//! Every state with every input: `tests/matrix.txt` lists the effects.
//!
//! After an intended change, write the matrix anew and read the difference: `RENEW=1 cargo test -p
//! heddle-cm matrix && git diff cm/src/ib/tests/matrix.txt`.

use std::fmt::Write as _;

use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::cm::{Answered, Apr, Drep, Dreq, Lap, Message, Mra, Rej, Rep, Req, Rtu};
use heddle_ib::{CommId, Qpn as IbQpn, TimeCode};
use heddle_types::{AcceptTerms, AppId, CmId, Event, ListenerId, Pd, QpSpec, Qpn, ib::RejReason};

use super::state::Effect;
use super::*;

const OURS: CommId = CommId(0x0a);
const PEERS: CommId = CommId(0x0b);
const TID: u64 = 1;
const DREQ_TID: u64 = 2;
const NOW: Instant = Instant::from_millis(100_000);
const QP: QpSpec = QpSpec { qpn: Qpn(7), pd: Pd(1), sq_depth: 1, rq_depth: 1 };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn link(passive: bool, known: bool) -> IbLink {
    IbLink {
        id: CmId(1),
        app: AppId(1),
        tenant: heddle_types::TenantId::App(AppId(1)),
        worker: WorkerId(0),
        listener: passive.then_some(ListenerId(1)),
        local: "10.0.0.1:7174".parse().unwrap(),
        remote: "10.0.0.2:50000".parse().unwrap(),
        src_port: 0xc000,
        local_comm: OURS,
        remote_comm: known.then_some(PEERS),
        is_stranger: false,
        tid: TID,
        dreq_tid: DREQ_TID,
        ca_guid: 3,
        local_qpn: IbQpn::new(4),
        local_psn: 5,
        remote_qpn: IbQpn::new(if known { 6 } else { 0 }),
        remote_guid: 7,
        peer: Depths { responder_resources: 8, initiator_depth: 9 },
        interval: ms(500),
        retries: 3,
        time_wait: ms(5000),
        keepalive: Some(ms(60_000)),
    }
}

/// Returns the peer's side of a link.
fn peers() -> IbLink {
    IbLink {
        local_comm: PEERS,
        remote_comm: Some(OURS),
        is_stranger: false,
        local_qpn: IbQpn::new(6),
        remote_qpn: IbQpn::new(4),
        ..link(true, true)
    }
}

const OUR_DEPTHS: Depths = Depths { responder_resources: 16, initiator_depth: 16 };

fn wait(tid: u64, message: Message, left: u8) -> Wait {
    // With this time the next attempt is due at the time of the input.
    let sent = Instant::from_millis(99_500);
    Wait::new(sent, tid, message, ms(500), left, ms(8000))
}

/// Returns all states, each with its name and link; the link says whether the connection is passive
/// and whether the peer's name is known.
fn states() -> Vec<(&'static str, IbLink, IbState)> {
    let (active, passive) = (|| link(false, true), || link(true, true));
    let req = || link(false, false).req(OUR_DEPTHS, TimeCode::new(17), b"").unwrap();
    let rep = || passive().rep(OUR_DEPTHS, b"").unwrap();
    let rej = || passive().consumer_rej(b"").unwrap();
    let qpn = QP.qpn;
    let ours = OUR_DEPTHS;
    let agreed = passive().agreed(OUR_DEPTHS);
    let until = |n| NOW + ms(n);
    let sent = |left| IbState::ReqSent { wait: wait(TID, req(), left), qpn, ours };
    let replied = |left| IbState::RepSent { wait: wait(TID, rep(), left), qpn, agreed };
    let ending = |left| IbState::DreqSent { wait: wait(DREQ_TID, active().dreq(), left), qpn };
    let asked = |by, mra_at| IbState::ReqRcvd { accept_by: until(by), mra_at };
    // The peer's last message came at `heard`, and the manager has probed `asked` times since.
    let up = |heard, asked: u32| {
        let (link, idle) = (passive(), Some(ms(60_000)));
        let mut k = Keepalive::new(rep(), idle, heard);
        for _ in 0..asked {
            assert!(k.ask(&link, Instant::from_millis(99_500), &mut Default::default()));
        }
        IbState::Established { qpn, keepalive: Some(Box::new(k)) }
    };
    let long_ago = Instant::from_millis(40_000);
    let over = |last, by| IbState::TimeWait { last, until: until(by) };
    vec![
        ("ReqSent", link(false, false), sent(2)),
        ("ReqSent, for the last time", link(false, false), sent(0)),
        ("ReqRcvd", passive(), asked(30_000, Some(NOW))),
        ("ReqRcvd, for too long", passive(), asked(0, None)),
        ("RepSent", passive(), replied(2)),
        ("RepSent, for the last time", passive(), replied(0)),
        ("Established, active", active(), IbState::Established { qpn, keepalive: None }),
        ("Established, passive", passive(), up(NOW, 0)),
        ("Established, passive and silent", passive(), up(long_ago, 0)),
        ("Established, passive and asked", passive(), up(long_ago, 2)),
        ("Established, passive and asked for the last time", passive(), up(long_ago, 4)),
        ("DreqSent", active(), ending(2)),
        ("DreqSent, for the last time", active(), ending(0)),
        ("TimeWait", passive(), over(None, 5000)),
        ("TimeWait, rejected", passive(), over(Some(rej()), 5000)),
        ("TimeWait, for long enough", passive(), over(None, 0)),
        ("Gone", passive(), IbState::Gone),
    ]
}

fn messages() -> Vec<(&'static str, u64, Message)> {
    let p = peers();
    let deep = Depths { initiator_depth: 17, ..OUR_DEPTHS };
    let private = || p.consumer_rej(b"no").unwrap();
    let mra = |answered| {
        Message::Mra(Box::new(Mra {
            local_comm_id: PEERS,
            remote_comm_id: OURS,
            answered,
            service_timeout: TimeCode::new(18),
            private_data: [0; 222],
        }))
    };
    let service = || {
        let Message::Rej(mut rej) = p.rej(Answered::REQ, RejReason::CONSUMER) else { panic!() };
        rej.ari_len = 4;
        rej.ari[1] = 6;
        Message::Rej(rej)
    };
    let dreq = |qpn| {
        let Message::Dreq(mut dreq) = p.dreq() else { panic!() };
        dreq.remote_qpn = IbQpn::new(qpn);
        Message::Dreq(dreq)
    };
    let lap = Lap { local_comm_id: PEERS, remote_comm_id: OURS };
    vec![
        ("REQ", TID, p.req(OUR_DEPTHS, TimeCode::new(17), b"").unwrap()),
        ("REP", TID, p.rep(OUR_DEPTHS, b"").unwrap()),
        ("REP, other tid", 9, p.rep(OUR_DEPTHS, b"").unwrap()),
        ("REP, too deep", TID, p.rep(deep, b"").unwrap()),
        ("RTU", TID, p.rtu()),
        ("MRA of REQ", TID, mra(Answered::REQ)),
        ("MRA of REP", TID, mra(Answered::REP)),
        ("REJ, application", TID, private()),
        ("REJ, service", TID, service()),
        ("REJ, timeout", TID, p.rej(Answered::OTHER, RejReason::TIMEOUT)),
        ("REJ, other tid", 9, p.rej(Answered::OTHER, RejReason::TIMEOUT)),
        ("DREQ", 8, dreq(4)),
        ("DREQ, other QP", 8, dreq(5)),
        ("DREP", DREQ_TID, p.drep()),
        ("DREP, other tid", 9, p.drep()),
        ("LAP", 8, Message::Lap(lap)),
    ]
}

fn said(message: &Message) -> String {
    match message {
        Message::Req(m) => {
            let Req { local_comm_id, .. } = **m;
            format!("REQ {}", local_comm_id.0)
        }
        Message::Rep(m) => {
            let Rep { responder_resources: r, initiator_depth: i, .. } = **m;
            assert_eq!((m.local_comm_id, m.remote_comm_id), (OURS, PEERS));
            format!("REP {r}/{i}")
        }
        Message::Rej(m) => {
            let Rej { reason, answered, .. } = **m;
            format!("REJ {} of {}, ari {:?}", reason.0, answered.0, m.ari())
        }
        Message::Mra(m) => format!("MRA {:?}", m.service_timeout.duration()),
        Message::Rtu(m) => {
            let Rtu { local_comm_id, remote_comm_id, .. } = **m;
            assert_eq!((local_comm_id, remote_comm_id), (OURS, PEERS));
            "RTU".into()
        }
        Message::Dreq(m) => {
            let Dreq { local_comm_id, remote_comm_id, remote_qpn, .. } = **m;
            assert_eq!((local_comm_id, remote_comm_id), (OURS, PEERS));
            format!("DREQ {}", remote_qpn.get())
        }
        Message::Drep(m) => {
            let Drep { local_comm_id, remote_comm_id, .. } = **m;
            assert_eq!((local_comm_id, remote_comm_id), (OURS, PEERS));
            "DREP".into()
        }
        Message::Apr(m) => {
            let Apr { status, .. } = **m;
            format!("APR {status}")
        }
        other => format!("{other:?}"),
    }
}

fn name(state: &IbState) -> String {
    let name = format!("{state:?}");
    name.split([' ', '{']).next().unwrap_or_default().into()
}

/// Returns the effects of one input in one state, on a line.
fn outcome(mut link: IbLink, state: IbState, input: Input<'_>) -> String {
    let (was, due) = (name(&state), state.deadline());
    let mut fx = crate::ib::state::Effects::default();
    let state = state.step(&mut link, input, NOW, &mut fx);
    let now = name(&state);
    let mut out = if now == was { "=".to_string() } else { now };
    if state.deadline() != due {
        let _ = match state.deadline() {
            Some(at) => write!(out, " | {:?}", at.since(NOW)),
            None => write!(out, " | no deadline"),
        };
    }
    for effect in fx.list {
        out += " | ";
        out += &match effect {
            Effect::Send(tid, message) => format!("{tid}: {}", said(&message)),
            Effect::Tell(Event::ConnectError { error, qp, .. }) => format!("ERROR {error}, {qp:?}"),
            Effect::Tell(Event::Disconnected { reason, .. }) => format!("DISCONNECTED {reason}"),
            Effect::Tell(Event::Established { agreed, .. }) => {
                format!("ESTABLISHED {}/{}", agreed.ird, agreed.ord)
            }
            Effect::Tell(event) => {
                let text = format!("{event:?}");
                text.split(' ').next().unwrap_or_default().to_uppercase()
            }
            Effect::Free(_) => "free qp".into(),
            Effect::Spend(_) => "spend qp".into(),
        };
    }
    let mut count = |name: &'static str, _: &'static str, n: u64| {
        if n > 0 {
            let _ = write!(out, " | {name} +{n}");
        }
    };
    fx.ib.for_each(&mut count);
    fx.cm.for_each(&mut count);
    if let Some(e) = fx.denied {
        let _ = write!(out, " | DENIED {e}");
    }
    out
}

#[test]
fn test_state_machine_matches_table_for_every_state_and_input() {
    let accept = AcceptTerms::new(QP);
    let too_much = AcceptTerms { private_data: vec![1; 197], ..accept.clone() };
    let long = [1; 149];
    let messages = messages();
    let inputs = || {
        let all = messages.iter().map(|(what, tid, m)| (*what, Input::Message(*tid, m)));
        let mut all: Vec<_> = all.collect();
        all.extend([
            ("accept", Input::Accept(&accept)),
            ("accept, unsayable", Input::Accept(&too_much)),
            ("reject", Input::Reject(b"no")),
            ("reject, unsayable", Input::Reject(&long)),
            ("refuse", Input::Refuse(3)),
            ("disconnect", Input::Disconnect),
            ("time-out", Input::Timeout),
            ("make room", Input::MakeRoom),
            ("app gone", Input::AppGone),
            ("withdrawn", Input::Withdrawn),
            ("worker lost", Input::WorkerLost),
        ]);
        all
    };
    let mut table = String::new();
    for (n, (state, ..)) in states().into_iter().enumerate() {
        let _ = writeln!(table, "{state}");
        for (what, input) in inputs() {
            let (_, link, state) = states().swap_remove(n);
            let line = format!("  {what:<18}{}", outcome(link, state, input));
            let _ = writeln!(table, "{}", line.trim_end());
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ib/tests/matrix.txt");
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    for (n, (was, is)) in known.lines().zip(table.lines()).enumerate() {
        assert_eq!(was, is, "{path}:{}: left is known, right is new", n + 1);
    }
    assert_eq!(known.lines().count(), table.lines().count(), "{path}");
}

/// Time always goes on: a state whose deadline has passed does not have the same deadline again.
#[test]
fn test_state_has_later_deadline_or_none_after_a_timeout() {
    for (what, mut link, state) in states() {
        let mut fx = crate::ib::state::Effects::default();
        let state = state.step(&mut link, Input::Timeout, NOW, &mut fx);
        assert!(state.deadline().is_none_or(|at| at > NOW), "{what}");
    }
}
