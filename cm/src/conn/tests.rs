//! Every state with every input: `tests/matrix.txt` lists the effects.
//!
//! After an intended change, write the matrix anew and read the difference: `RENEW=1 cargo test -p
//! heddle-cm matrix && git diff cm/src/conn/tests/matrix.txt`.

use std::fmt::Write as _;

use heddle_base::Chunks;
use heddle_iwarp::{Role, Side};
use heddle_mr::MrTable;
use heddle_rnic::{Rnic, RnicConfig};
use heddle_tcp::{RxFrame, StackConfig};
use heddle_types::{
    Agreed, Cut, DialogueError, ParamsError, Pd, TermCode, TerminatePayload,
    mpa::{ConfigError, RtrConfig, RtrSet, StartupError},
};

use super::*;
use crate::dialogue::{AnswerStep, AskStep};

#[derive(Debug)]
struct NoFrame;

impl Chunks for NoFrame {
    fn len(&self) -> usize {
        0
    }

    fn chunk_at(&self, _: usize) -> &[u8] {
        &[]
    }
}

impl RxFrame for NoFrame {}

impl heddle_rnic::RnicFrame for NoFrame {}

/// Returns names of connections, all different.
pub(crate) fn conn_ids() -> impl Iterator<Item = ConnId> {
    let seed = heddle_base::Seed::from_u64(1);
    let stack = StackConfig::new([2; 6], "10.0.0.1/24".parse().unwrap(), seed.clone());
    let mrs = std::sync::Arc::new(MrTable::new(&seed, 1));
    let mut rnic: Rnic<NoFrame> = Rnic::new(RnicConfig::new(stack, 1, 0), mrs);
    std::iter::repeat_with(move || {
        let conn = rnic.connect(Instant::ZERO, "10.0.0.2:1".parse().unwrap()).unwrap();
        rnic.release(conn);
        conn
    })
}

/// A dialogue that follows the commands in its bytes.
#[derive(Debug)]
struct Script {
    /// Whether the dialogue has another to fall back to.
    falls_back: bool,
}

const BROKEN: DialogueError = DialogueError::Mpa(StartupError::TrailingBytes);
const UNSAYABLE: ParamsError = ParamsError::Mpa(ConfigError::NoRtr);

fn agreement() -> Agreement {
    let agreed = Agreed {
        transport: heddle_types::Transport::Iwarp,
        revision: 2,
        crc: true,
        ird: 3,
        ord: 4,
        peer: None,
        rtr: RtrConfig::None,
        send_markers: false,
        recv_markers: false,
    };
    Agreement { agreed, role: Role::Initiator, private_data: vec![], last_word: None }
}

impl Ask for Script {
    fn request(&self) -> Vec<u8> {
        b"request".to_vec()
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> AskStep {
        match bytes {
            b"good" => AskStep::Connected(agreement()),
            b"no" => AskStep::Rejected { private_data: vec![], peer: None },
            b"bad" => AskStep::Failed { error: BROKEN, last_word: None },
            b"last" => AskStep::Failed { error: BROKEN, last_word: Some(b"last word".to_vec()) },
            b"other" if self.falls_back => AskStep::FallBack,
            _ => AskStep::NeedMore,
        }
    }

    fn fall_back(&mut self) -> Option<Box<dyn Ask>> {
        let other: Box<dyn Ask> = Box::new(Script { falls_back: false });
        core::mem::take(&mut self.falls_back).then_some(other)
    }
}

impl Answer for Script {
    fn handle_bytes(&mut self, bytes: &[u8]) -> AnswerStep {
        match bytes {
            b"good" => {
                AnswerStep::Request { private_data: vec![], peer: None, peer_to_peer: false }
            }
            b"bad" => AnswerStep::Failed(BROKEN),
            _ => AnswerStep::NeedMore,
        }
    }

    fn accept(&mut self, params: &AcceptTerms) -> Result<(Vec<u8>, Agreement), ParamsError> {
        match params.private_data[..] {
            [] => Ok((b"accepted".to_vec(), agreement())),
            _ => Err(UNSAYABLE),
        }
    }

    fn reject(&mut self, private_data: &[u8], _: Option<u16>) -> Result<Vec<u8>, ParamsError> {
        match private_data {
            [] => Ok(b"rejected".to_vec()),
            _ => Err(UNSAYABLE),
        }
    }
}

const QP: QpSpec = QpSpec { qpn: Qpn(7), pd: Pd(1), sq_depth: 1, rq_depth: 1 };

fn states() -> Vec<(&'static str, bool, State)> {
    let qpn = QP.qpn;
    let entering = |agreement, ends| State::Entering { qpn, agreement: Box::new(agreement), ends };
    let answered = || Agreement { role: Role::Responder, ..agreement() };
    let undoing = |closed| State::Undoing { qpn, error: ConnectFailure::Cancelled, closed };
    let ask = || Box::new(Script { falls_back: false });
    let last_word = || Agreement { last_word: Some(b"last word".to_vec()), ..agreement() };
    let expecting = || Agreement {
        agreed: Agreed { rtr: RtrConfig::Expect(RtrSet::ALL), ..agreement().agreed },
        role: Role::Responder,
        ..last_word()
    };
    let terminated = DisconnectReason::RemoteTerminate(TermCode::MPA_CRC);
    let by_us = DisconnectReason::LocalTerminate(TermCode::MPA_CRC);
    vec![
        ("Opening", false, State::Opening { ask: ask(), qp: QP }),
        ("Connecting", false, State::Connecting { ask: ask(), qp: QP }),
        ("AwaitReply", false, State::AwaitReply { ask: ask(), qp: QP }),
        (
            "AwaitReply, may fall back",
            false,
            State::AwaitReply { ask: Box::new(Script { falls_back: true }), qp: QP },
        ),
        ("AwaitRequest", true, State::AwaitRequest { answer: ask() }),
        ("AwaitAnswer", true, State::AwaitAnswer { answer: ask() }),
        ("Entering, active", false, entering(agreement(), false)),
        ("Entering, passive", true, entering(answered(), false)),
        ("Entering, active, with a last word", false, entering(last_word(), false)),
        ("Entering, passive, peer-to-peer", true, entering(expecting(), false)),
        ("Entering, active, and ending", false, entering(agreement(), true)),
        ("Entering, passive, and ending", true, entering(answered(), true)),
        ("Undoing", true, undoing(false)),
        ("Undoing, closed", true, undoing(true)),
        ("AwaitFpdu", true, State::AwaitFpdu { qpn }),
        ("Running", true, State::Running { qpn }),
        ("Ending", true, State::Ending { qpn, why: None, terminate: None }),
        ("Ending, terminated", true, State::Ending { qpn, why: Some(terminated), terminate: None }),
        ("Ending, by us", true, State::Ending { qpn, why: Some(by_us), terminate: None }),
        ("Closing in order", true, State::Closing { in_order: true }),
        ("Closing with a reset", true, State::Closing { in_order: false }),
        ("Unopened", false, State::Unopened),
        ("Gone", true, State::Gone),
    ]
}

fn name(state: &State) -> String {
    let name = format!("{state:?}");
    let short = name.split([' ', '{']).next().unwrap_or_default();
    match state {
        State::Closing { in_order: true } => "Closing in order".into(),
        State::Closing { in_order: false } => "Closing with a reset".into(),
        State::Entering { ends: true, .. } => "Entering, and ending".into(),
        State::Undoing { closed: true, .. } => "Undoing, closed".into(),
        _ => short.into(),
    }
}

/// Returns the effects of one input in one state, on a line.
fn outcome(passive: bool, state: State, input: Input<'_>, conn: ConnId) -> String {
    let was = name(&state);
    let unnamed = matches!(state, State::Opening { .. } | State::Unopened);
    let remote: SocketAddr = "10.0.0.2:1".parse().unwrap();
    let seconds = Duration::from_secs;
    let mut link = ConnInfo {
        id: CmId(1),
        app: AppId(1),
        worker: WorkerId(0),
        conn: (!unnamed).then_some(conn),
        local: None,
        remote: remote.into(),
        received: 0,
        since: crate::small::Stamp::of(Instant::ZERO),
        passive: passive.then_some(Passive {
            listener: ListenerId(1),
            accept_timeout: seconds(30).into(),
            first_fpdu_timeout: Some(seconds(60).into()),
            rtr_timeout: seconds(5).into(),
        }),
        tcp: TcpTerms::default(),
        close_timeout: seconds(20).into(),
        close_limit: seconds(600).into(),
    };
    let mut fx = Effects::default();
    let state = state.step(&mut link, input, &mut fx);
    let now = name(&state);
    let mut out = if now == was { "=".to_string() } else { now };
    for effect in fx.list {
        out += " | ";
        out += &match effect {
            Effect::Order(Order::SendStartup { bytes, .. }) => {
                format!("send {}", String::from_utf8(bytes).unwrap())
            }
            Effect::Order(Order::EnterFpduMode { mode, .. }) => {
                assert_eq!((mode.qp.qpn, mode.qp.ird, mode.qp.ord), (QP.qpn, 3, 4));
                let reply = String::from_utf8(mode.reply).unwrap();
                format!("enter after {}, {reply:?}", mode.startup_len)
            }
            Effect::Order(order) => {
                let text = format!("{order:?}");
                text.split(' ').next().unwrap_or_default().to_lowercase()
            }
            Effect::Tell(Event::ConnectError { error, qp, .. }) => format!("ERROR {error}, {qp:?}"),
            Effect::Tell(Event::Disconnected { reason, .. }) => format!("DISCONNECTED {reason}"),
            Effect::Tell(event) => {
                let text = format!("{event:?}");
                text.split(' ').next().unwrap_or_default().to_uppercase()
            }
            Effect::Deadline(Some(after)) => format!("{after:?}"),
            Effect::Deadline(None) => "no deadline".into(),
            Effect::Redial { closed, .. } => format!("redial, closed: {closed}"),
            Effect::Free(_) => "free qp".into(),
            Effect::Spend(_) => "spend qp".into(),
            Effect::Refused(why) => format!("LOG {why}"),
        };
    }
    fx.counters.for_each(|name, _, n| {
        if n > 0 {
            let _ = write!(out, " | {name} +{n}");
        }
    });
    if let Some(e) = fx.denied {
        let _ = write!(out, " | DENIED {e}");
    }
    out
}

#[test]
fn test_state_machine_matches_table_for_every_state_and_input() {
    let conn = conn_ids().next().unwrap();
    let accept = AcceptTerms::new(QP);
    let bad_accept = AcceptTerms { private_data: vec![1], ..accept.clone() };
    let code = TermCode::MPA_CRC;
    let inputs = || {
        vec![
            ("opened", Input::Opened(Ok(conn))),
            ("not opened", Input::Opened(Err(ConnectError::NoRoute))),
            ("connected", Input::Connected("10.0.0.1:1".parse().unwrap())),
            ("bytes: more", Input::Bytes(b"more")),
            ("bytes: good", Input::Bytes(b"good")),
            ("bytes: no", Input::Bytes(b"no")),
            ("bytes: bad", Input::Bytes(b"bad")),
            ("bytes: answer bad", Input::Bytes(b"last")),
            ("bytes: other", Input::Bytes(b"other")),
            ("accept", Input::Accept(&accept)),
            ("accept, unsayable", Input::Accept(&bad_accept)),
            ("reject", Input::Reject(b"", None)),
            ("reject, unsayable", Input::Reject(b"x", None)),
            ("disconnect", Input::Disconnect),
            ("entered", Input::Entered(Ok(()))),
            ("not entered", Input::Entered(Err(RnicError::NotStartup))),
            ("order refused", Input::OrderRefused(RnicError::NotStartup)),
            ("first fpdu", Input::Qp(QpEvent::FirstFpdu)),
            ("drained", Input::Qp(QpEvent::Drained)),
            ("we terminate", Input::Qp(QpEvent::Terminated { by: Side::Local, code })),
            ("peer terminates", Input::Qp(QpEvent::Terminated { by: Side::Remote, code })),
            ("with headers", Input::PeerTerminate(Box::new(TerminatePayload::new(&[], false)))),
            ("we fail, unsaid", Input::Qp(QpEvent::Failed { code })),
            ("truncated", Input::Qp(QpEvent::Truncated(Cut::Message))),
            ("peer closed", Input::PeerClosed),
            ("closed", Input::Closed(CloseReason::Orderly)),
            ("reset", Input::Closed(CloseReason::Reset)),
            ("time-out", Input::Timeout),
            ("evict", Input::Evict(Refusal::Evicted)),
            ("app gone", Input::AppGone),
            ("worker lost", Input::WorkerLost { touched: true }),
            ("lost, untouched", Input::WorkerLost { touched: false }),
        ]
    };
    let mut table = String::new();
    for (n, (state, passive, _)) in states().into_iter().enumerate() {
        let _ = writeln!(table, "{state}");
        for (what, input) in inputs() {
            let (_, _, state) = states().swap_remove(n);
            let line = format!("  {what:<18}{}", outcome(passive, state, input, conn));
            let _ = writeln!(table, "{}", line.trim_end());
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conn/tests/matrix.txt");
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    for (n, (was, is)) in known.lines().zip(table.lines()).enumerate() {
        assert_eq!(was, is, "{path}:{}: left is known, right is new", n + 1);
    }
    assert_eq!(known.lines().count(), table.lines().count(), "{path}");
}
