//! Assembles DDP segments of one direction into RDMAP messages (RFC 5041 section 5, RFC 5040).

use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::{Control, Opcode};

use crate::item::{Place, Rule, Verdict};

/// Most bytes that the decoder keeps of a message: many more than transport messages usually have.
/// A tagged message may be of any length, so the decoder keeps only [`HEAD_MAX`] bytes of it.
pub(crate) const SEND_MAX: usize = 1 << 20;

/// Most bytes kept of a tagged message: its RPC header, if it begins with one.
const HEAD_MAX: usize = 512;

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) opcode: Opcode,
    /// The beginning of a tagged message.
    pub(crate) place: Option<Place>,
    /// The 32 bits that DDP keeps for RDMAP: the STag that a Send invalidates.
    pub(crate) ulp32: u32,
    /// Number of bytes of the message.
    pub(crate) bytes: u64,
    /// The first of these bytes.
    pub(crate) head: Vec<u8>,
}

impl Message {
    /// Returns true if `head` holds all bytes.
    pub(crate) fn is_whole(&self) -> bool {
        self.head.len() as u64 == self.bytes
    }

    fn append(&mut self, payload: &[u8]) {
        let most = if self.place.is_some() { HEAD_MAX } else { SEND_MAX };
        let room = most.saturating_sub(self.head.len()).min(payload.len());
        self.head.extend_from_slice(payload.get(..room).unwrap_or(&[]));
        self.bytes += payload.len() as u64;
    }
}

/// Number of queues of a stream.
const QUEUES: usize = Qn::LAST.0 as usize + 1;

/// The messages of one direction.
#[derive(Debug)]
pub(crate) struct Messages {
    /// For each queue: the number of its next message, when it is known.
    msn: [Option<u32>; QUEUES],
    /// For each queue: a message that is not complete.
    untagged: [Option<Message>; QUEUES],
    /// An incomplete Write, and an incomplete Read Response.
    tagged: [Option<Message>; 2],
}

fn order(text: String) -> Verdict {
    Verdict { rule: Rule::Order, text }
}

impl Messages {
    pub(crate) fn new() -> Messages {
        let untagged = [const { None }; QUEUES];
        Messages { msn: [Some(1); QUEUES], untagged, tagged: [None, None] }
    }

    /// Handles that segments are missing: forgets incomplete messages, and accepts any next number.
    pub(crate) fn interrupt(&mut self) {
        *self = Messages { msn: [None; QUEUES], ..Messages::new() };
    }

    /// Takes a segment with good headers. Returns the message that it ends, and the fault in its
    /// number or offset.
    pub(crate) fn segment(
        &mut self,
        header: &DdpHeader,
        control: Control,
        payload: &[u8],
    ) -> (Option<Message>, Option<Verdict>) {
        let opcode = control.opcode;
        match *header {
            DdpHeader::Tagged { last, stag, to, .. } => {
                let place = Place { handle: stag.0, offset: to };
                self.in_tagged(opcode, last, place, payload)
            }
            DdpHeader::Untagged { last, rsvd_ulp32, qn, msn, mo, .. } => {
                let queue = usize::try_from(qn.0).unwrap_or(QUEUES);
                let (Some(next), Some(open)) =
                    (self.msn.get_mut(queue), self.untagged.get_mut(queue))
                else {
                    return (None, None);
                };
                let begun = open.is_some();
                let expected = open.as_ref().map_or(0, |m| m.bytes);
                let wrong = if next.is_some_and(|next| next != msn.0) {
                    let want = next.unwrap_or(0);
                    Some(order(format!("message {} of queue {qn}, not {want}", msn.0)))
                } else if u64::from(mo) != expected {
                    Some(order(format!("message offset {mo}, not {expected}")))
                } else if open.as_ref().is_some_and(|m| m.opcode != opcode) {
                    Some(order(format!("{opcode} within another message")))
                } else {
                    None
                };
                // The decoder cannot judge a message whose beginning is not in the capture.
                let whole = begun || mo == 0;
                let new =
                    || Message { opcode, place: None, ulp32: rsvd_ulp32, bytes: 0, head: vec![] };
                if wrong.is_some() {
                    *open = None;
                }
                let mut message = open.take().unwrap_or_else(new);
                message.append(payload);
                *next = Some(if last { msn.next().0 } else { msn.0 });
                if last {
                    let done = wrong.is_none() && whole;
                    return (done.then_some(message), wrong);
                }
                if wrong.is_none() && whole {
                    *open = Some(message);
                }
                (None, wrong)
            }
        }
    }

    fn in_tagged(
        &mut self,
        opcode: Opcode,
        last: bool,
        place: Place,
        payload: &[u8],
    ) -> (Option<Message>, Option<Verdict>) {
        let [write, response] = &mut self.tagged;
        let open = if opcode == Opcode::WRITE { write } else { response };
        let new = || Message { opcode, place: Some(place), ulp32: 0, bytes: 0, head: vec![] };
        let mut message = open.take().unwrap_or_else(new);
        let begun = message.place.unwrap_or(place);
        let want = Place { offset: begun.offset.wrapping_add(message.bytes), ..begun };
        let mut wrong = None;
        if want != place {
            let (got, want) = (shown(place), shown(want));
            wrong = Some(order(format!("{opcode} goes on at {got}, not {want}")));
            message = new();
        }
        message.append(payload);
        if last {
            return (Some(message), wrong);
        }
        *open = Some(message);
        (None, wrong)
    }
}

fn shown(place: Place) -> String {
    format!("{:#010x}+{:#x}", place.handle, place.offset)
}

#[cfg(test)]
mod tests {
    use heddle_iwarp::Msn;
    use heddle_types::Stag;

    use super::*;

    fn send(messages: &mut Messages, msn: u32, mo: u32, last: bool) -> (Option<usize>, bool) {
        let control = Control::new(Opcode::SEND);
        let rsvd_ulp = control.to_byte();
        let (qn, msn) = (Qn::SEND, Msn(msn));
        let header = DdpHeader::Untagged { last, rsvd_ulp, rsvd_ulp32: 0, qn, msn, mo };
        let (message, wrong) = messages.segment(&header, control, b"12345678");
        (message.map(|m| m.head.len()), wrong.is_some())
    }

    #[test]
    fn test_segments_of_a_send_form_one_message_unless_one_is_missing() {
        let mut m = Messages::new();
        assert_eq!(send(&mut m, 1, 0, true), (Some(8), false));
        assert_eq!(send(&mut m, 2, 0, false), (None, false));
        assert_eq!(send(&mut m, 2, 8, true), (Some(16), false));
        assert_eq!(send(&mut m, 4, 0, true), (None, true), "a number is left out");
        assert_eq!(send(&mut m, 5, 0, false), (None, false));
        assert_eq!(send(&mut m, 5, 9, true), (None, true), "a byte is left out");
        assert_eq!(send(&mut m, 6, 0, true), (Some(8), false));
    }

    #[test]
    fn test_message_numbers_may_resume_anywhere_after_an_interruption() {
        let mut m = Messages::new();
        m.interrupt();
        assert_eq!(send(&mut m, 70, 0, true), (Some(8), false));
        assert_eq!(send(&mut m, 72, 0, true), (None, true));
    }

    #[test]
    fn test_write_continues_only_at_the_offset_where_it_stopped() {
        let mut m = Messages::new();
        let mut write = |to, last| {
            let control = Control::new(Opcode::WRITE);
            let rsvd_ulp = control.to_byte();
            let header = DdpHeader::Tagged { last, rsvd_ulp, stag: Stag(7), to };
            let (message, wrong) = m.segment(&header, control, &[0; 600]);
            (message.map(|m| (m.place.unwrap().offset, m.bytes, m.head.len())), wrong.is_some())
        };
        assert_eq!(write(100, false), (None, false));
        assert_eq!(write(700, true), (Some((100, 1200, 512)), false));
        assert_eq!(write(100, false), (None, false));
        assert_eq!(write(701, true), (Some((701, 600, 512)), true));
    }
}
