//! Every state against every event, as two tables: the transition table, and the behaviour of a
//! connection with real segments.

use super::*;
use crate::conn::state::{Input, transition};

fn short(s: State) -> &'static str {
    match s {
        State::SynSent => "SynSent",
        State::SynReceived => "SynRcvd",
        State::Established => "Estab",
        State::FinWait1 => "FinWt1",
        State::FinWait2 => "FinWt2",
        State::CloseWait => "ClsWt",
        State::Closing => "Closing",
        State::LastAck => "LastAck",
        State::TimeWait => "TimeWt",
        State::Closed => "Closed",
    }
}

#[test]
fn test_transition_table_matches_state_machine() {
    let mut table = String::from("        ");
    for i in Input::ALL {
        table += &format!(" {:<9}", format!("{i:?}"));
    }
    for s in State::ALL {
        table = format!("{}\n{:<8}", table.trim_end(), short(s));
        for i in Input::ALL {
            table += &format!(" {:<9}", transition(s, i).map_or("-", short));
        }
    }
    assert_eq!(table.trim(), TRANSITIONS.trim(), "\n{table}\n");
}

const TRANSITIONS: &str = "
         Syn       SynAcked  Close     Fin       FinAcked  Kill      WaitOver
SynSent  SynRcvd   Estab     Closed    -         -         Closed    -
SynRcvd  -         Estab     -         -         -         Closed    -
Estab    -         -         FinWt1    ClsWt     -         Closed    -
FinWt1   -         -         -         Closing   FinWt2    Closed    -
FinWt2   -         -         -         TimeWt    -         Closed    -
ClsWt    -         -         LastAck   -         -         Closed    -
Closing  -         -         -         -         TimeWt    Closed    -
LastAck  -         -         -         -         Closed    Closed    -
TimeWt   -         -         -         -         -         Closed    Closed
Closed   -         -         -         -         -         -         -
";

/// Returns the result of one event: the new state, the segments sent, the events reported.
fn outcome(state: State, event: &str) -> String {
    let mut b = Bench::in_state(state);
    let done = |b: &Bench| {
        matches!(b.c.state(), State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
    };
    let ours = matches!(state, State::FinWait2 | State::TimeWait);
    let seq = i32::from(done(&b));
    // The peer's acknowledgment number when it acknowledges nothing new.
    let una = i32::from(ours);
    match event {
        "syn" => drop(b.recv(&b.seg(-1, 0).with(SYN))),
        "syn-ack" => drop(b.recv(&b.seg(-1, 0).with(SYN_ACK))),
        "ack" => drop(b.recv(&b.seg(seq, una))),
        "ack-of-fin" => drop(b.recv(&b.seg(seq, 1))),
        "fin" => drop(b.recv(&b.seg(0, una).with(FIN))),
        "fin+ack-of-fin" => drop(b.recv(&b.seg(0, 1).with(FIN))),
        "data" => {
            let s = Segment { len: 10, ..b.seg(seq, una) };
            let p = b.recv(&s).payload;
            if let Some(p) = p {
                b.c.accept_payload(b.now, p.pos, p.len);
            }
        }
        "rst" => drop(b.recv(&b.seg(seq, 0).with(RST))),
        "rst-ack" => drop(b.recv(&b.seg(seq, 0).with(RST.with(ACK)))),
        "rst-in-window" => drop(b.recv(&b.seg(seq + 9, 0).with(RST))),
        "bad-ack" => drop(b.recv(&b.seg(seq, 999))),
        "close" => b.c.close(),
        "abort" => b.c.abort(),
        "timer" => {
            if let Some(at) = b.c.poll_timeout() {
                b.now = at;
                b.c.handle_timeout(at);
            }
        }
        _ => unreachable!(),
    }
    let sent = b.sent();
    let events: Vec<_> = b.events().iter().map(|e| format!("{e:?}")).collect();
    let state = if b.c.state() == state { "=" } else { short(b.c.state()) };
    [vec![state.to_string()], sent, events].concat().join(" | ")
}

const EVENTS: [&str; 14] = [
    "syn",
    "syn-ack",
    "ack",
    "ack-of-fin",
    "fin",
    "fin+ack-of-fin",
    "data",
    "rst",
    "rst-ack",
    "rst-in-window",
    "bad-ack",
    "close",
    "abort",
    "timer",
];

#[test]
fn test_outcome_table_matches_every_state_and_event() {
    let mut table = String::new();
    for s in State::ALL {
        table += &format!("{}\n", short(s));
        for e in EVENTS {
            table += &format!("  {e:<15}{}\n", outcome(s, e));
        }
    }
    assert_eq!(table.trim(), OUTCOMES.trim(), "\n{table}\n");
}

const OUTCOMES: &str = "
SynSent
  syn            SynRcvd | S. -1 ack 0 again
  syn-ack        Estab | . 0 ack 0 | Connected
  ack            =
  ack-of-fin     = | R 1
  fin            =
  fin+ack-of-fin = | R 1
  data           =
  rst            =
  rst-ack        Closed | Refused
  rst-in-window  =
  bad-ack        = | R 999
  close          Closed | Aborted
  abort          Closed | Aborted
  timer          = | S -1 again
SynRcvd
  syn            = | S. -1 ack 0 again
  syn-ack        Estab | . 0 ack 0 | Connected
  ack            Estab | Connected
  ack-of-fin     = | R 1
  fin            ClsWt | . 0 ack 1 | Connected | PeerClosed
  fin+ack-of-fin = | R 1
  data           Estab | Connected
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 0 ack 0
  bad-ack        = | R 999
  close          =
  abort          Closed | R. 0 ack 0 | Aborted
  timer          = | S. -1 ack 0 again
Estab
  syn            = | . 0 ack 0
  syn-ack        = | . 0 ack 0
  ack            =
  ack-of-fin     = | . 0 ack 0
  fin            ClsWt | . 0 ack 1 | PeerClosed
  fin+ack-of-fin = | . 0 ack 0
  data           =
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 0 ack 0
  bad-ack        = | . 0 ack 0
  close          FinWt1 | F. 0 ack 0
  abort          Closed | R. 0 ack 0 | Aborted
  timer          =
FinWt1
  syn            = | . 1 ack 0
  syn-ack        = | . 1 ack 0
  ack            =
  ack-of-fin     FinWt2
  fin            Closing | . 1 ack 1 | PeerClosed
  fin+ack-of-fin TimeWt | . 1 ack 1 | PeerClosed | Closed
  data           =
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 1 ack 0
  bad-ack        = | . 1 ack 0
  close          =
  abort          Closed | R. 1 ack 0 | Aborted
  timer          = | F. 0 ack 0 again
FinWt2
  syn            = | . 1 ack 0
  syn-ack        = | . 1 ack 0
  ack            =
  ack-of-fin     =
  fin            TimeWt | . 1 ack 1 | PeerClosed | Closed
  fin+ack-of-fin TimeWt | . 1 ack 1 | PeerClosed | Closed
  data           =
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 1 ack 0
  bad-ack        = | . 1 ack 0
  close          =
  abort          Closed | R. 1 ack 0 | Aborted
  timer          Closed | R. 1 ack 0 | TimedOut
ClsWt
  syn            = | . 0 ack 1
  syn-ack        = | . 0 ack 1
  ack            =
  ack-of-fin     = | . 0 ack 1
  fin            = | . 0 ack 1
  fin+ack-of-fin = | . 0 ack 1
  data           =
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 0 ack 1
  bad-ack        = | . 0 ack 1
  close          LastAck | F. 0 ack 1
  abort          Closed | R. 0 ack 1 | Aborted
  timer          =
Closing
  syn            = | . 1 ack 1
  syn-ack        = | . 1 ack 1
  ack            =
  ack-of-fin     TimeWt | Closed
  fin            = | . 1 ack 1
  fin+ack-of-fin = | . 1 ack 1
  data           =
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 1 ack 1
  bad-ack        = | . 1 ack 1
  close          =
  abort          Closed | Aborted
  timer          = | F. 0 ack 1 again
LastAck
  syn            = | . 1 ack 1
  syn-ack        = | . 1 ack 1
  ack            =
  ack-of-fin     Closed | Closed
  fin            = | . 1 ack 1
  fin+ack-of-fin = | . 1 ack 1
  data           =
  rst            Closed | Reset
  rst-ack        Closed | Reset
  rst-in-window  = | . 1 ack 1
  bad-ack        = | . 1 ack 1
  close          =
  abort          Closed | Aborted
  timer          = | F. 0 ack 1 again
TimeWt
  syn            = | . 1 ack 1
  syn-ack        = | . 1 ack 1
  ack            =
  ack-of-fin     =
  fin            = | . 1 ack 1
  fin+ack-of-fin = | . 1 ack 1
  data           =
  rst            Closed
  rst-ack        Closed
  rst-in-window  = | . 1 ack 1
  bad-ack        = | . 1 ack 1
  close          =
  abort          Closed
  timer          Closed
Closed
  syn            =
  syn-ack        =
  ack            =
  ack-of-fin     =
  fin            =
  fin+ack-of-fin =
  data           =
  rst            =
  rst-ack        =
  rst-in-window  =
  bad-ack        =
  close          =
  abort          =
  timer          =
";
