//! The states of a connection and the single table of their transitions.

/// State of a connection (RFC 9293 section 3.3.2). The enum has no LISTEN: a listener is no
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// We sent a SYN and received nothing.
    SynSent,
    /// We received a SYN; the peer has not acknowledged ours.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// The owner closed; the peer has not acknowledged our FIN (which perhaps is not sent yet).
    FinWait1,
    /// The peer acknowledged our FIN; the peer's FIN has not come.
    FinWait2,
    /// The peer's FIN has come, the owner has not closed.
    CloseWait,
    /// Both sides closed at once: the peer's FIN has come, the peer has not acknowledged ours.
    Closing,
    /// The peer closed first; the peer has not acknowledged our FIN (which perhaps is not sent
    /// yet).
    LastAck,
    /// Both FINs are sent and acknowledged. The connection stays to answer a retransmitted FIN and
    /// to outlive old segments.
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

    /// Returns true if the connection accepts the peer's bytes in this state.
    pub(super) const fn receives(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns true if the connection may send our bytes or FIN, for the first time or again, in
    /// this state.
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

    /// Returns true if the owner has closed our direction.
    pub(super) const fn closing(self) -> bool {
        matches!(self, State::FinWait1 | State::Closing | State::LastAck)
    }
}

/// The events that move a connection from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The peer's SYN, without an ACK of ours.
    Syn,
    /// An acceptable ACK of our SYN (in SYN-SENT: together with the peer's SYN).
    SynAcked,
    /// The owner's close.
    Close,
    /// The peer's FIN, with all bytes before it accepted.
    Fin,
    /// The ACK of our FIN.
    FinAcked,
    /// A valid reset, a give-up or an abort.
    Kill,
    /// Expiry of the TIME-WAIT timer.
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

/// Returns the state after `input`, or `None` where `input` means nothing.
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
