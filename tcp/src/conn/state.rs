//! The states of a connection and the one table of their transitions.

/// State of a connection (RFC 9293 section 3.3.2). LISTEN is not here: a listener is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// SYN sent, nothing heard.
    SynSent,
    /// SYN received, our SYN not acknowledged.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// Owner closed; our FIN is not acknowledged (and perhaps not sent yet).
    FinWait1,
    /// Our FIN is acknowledged, the peer's has not come.
    FinWait2,
    /// The peer's FIN has come, the owner has not closed.
    CloseWait,
    /// Both closed at once: the peer's FIN has come, ours is not acknowledged.
    Closing,
    /// The peer closed first; our FIN is not acknowledged (and perhaps not sent yet).
    LastAck,
    /// Both FINs done; stays to answer a retransmitted FIN and to outlive old segments.
    TimeWait,
    /// No connection.
    Closed,
}

impl State {
    /// Every state.
    pub const ALL: [State; 10] = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
        State::Closed,
    ];

    /// Whether the peer's bytes are taken in this state.
    pub(super) const fn receives(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether our bytes or FIN may be sent, or sent again, in this state.
    pub(super) const fn sends(self) -> bool {
        matches!(
            self,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        )
    }

    /// Whether the owner has closed our direction.
    pub(super) const fn closing(self) -> bool {
        matches!(self, State::FinWait1 | State::Closing | State::LastAck)
    }
}

/// What moves a connection from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The peer's SYN, without an ACK of ours.
    Syn,
    /// An acceptable ACK of our SYN (in SYN-SENT: together with the peer's SYN).
    SynAcked,
    /// The owner closes.
    Close,
    /// The peer's FIN, with all bytes before it accepted.
    Fin,
    /// The ACK of our FIN.
    FinAcked,
    /// A valid reset, a give-up or an abort.
    Kill,
    /// The TIME-WAIT timer.
    WaitOver,
}

impl Input {
    #[cfg(test)]
    pub(super) const ALL: [Input; 7] = [
        Input::Syn,
        Input::SynAcked,
        Input::Close,
        Input::Fin,
        Input::FinAcked,
        Input::Kill,
        Input::WaitOver,
    ];
}

/// The state after `input`, or `None` where it means nothing.
pub(super) const fn transition(state: State, input: Input) -> Option<State> {
    use State::*;
    Some(match (state, input) {
        (SynSent, Input::Syn) => SynReceived,
        (SynSent | SynReceived, Input::SynAcked) => Established,
        (SynSent, Input::Close) => Closed,
        (Established, Input::Close) => FinWait1,
        (CloseWait, Input::Close) => LastAck,
        (Established, Input::Fin) => CloseWait,
        (FinWait1, Input::Fin) => Closing,
        (FinWait2, Input::Fin) => TimeWait,
        (FinWait1, Input::FinAcked) => FinWait2,
        (Closing, Input::FinAcked) => TimeWait,
        (LastAck, Input::FinAcked) => Closed,
        (TimeWait, Input::WaitOver) => Closed,
        (Closed, Input::Kill) => return None,
        (_, Input::Kill) => Closed,
        _ => return None,
    })
}
