//! What version 1 says in the private data of a connection's making (RFC 8797): how long Sends may be,
//! and whether replies may invalidate.
//!
//! ```text
//!    0  0xf6ab0e18 │ version 1 │ reserved 7, R 1 │ send size 8 │ receive size 8
//! ```
//!
//! Other layers have private data too. So the message is looked for, at any offset (section 5.2), and
//! one that is not there, or of another version, is the same as one that says only what is true of
//! every implementation (section 5.1): [`PrivateData::DEFAULT`].

use crate::v1;
use crate::xdr::{Reader, Writer};

/// What the message begins with.
pub const FORMAT: u32 = 0xf6ab_0e18;

/// The version of the message's format.
pub const VERSION: u8 = 1;

/// Octets of the message.
pub const LEN: usize = 8;

/// What sizes are multiples of.
const STEP: u32 = 1024;

/// The longest inline threshold that can be told, in octets.
pub const SIZE_MAX: u32 = 256 * STEP;

/// What one end says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// Whether it may be sent, and may send, Sends with Invalidate in replies: the R field.
    pub invalidate: bool,
    /// Octets of the longest Send that it makes: a multiple of 1024, at most [`SIZE_MAX`].
    send_size: u32,
    /// Octets of its Receive buffers, likewise.
    receive_size: u32,
}

impl PrivateData {
    /// What is true of an end that says nothing.
    pub const DEFAULT: PrivateData = PrivateData {
        invalidate: false,
        send_size: v1::INLINE_THRESHOLD,
        receive_size: v1::INLINE_THRESHOLD,
    };

    /// That of an end with buffers of so many octets; what cannot be told exactly is told as less.
    /// `None` when one is shorter than every implementation has to have, 1024 octets.
    pub fn new(invalidate: bool, send_size: u32, receive_size: u32) -> Option<PrivateData> {
        let told = |size: u32| {
            let told = size.min(SIZE_MAX) / STEP * STEP;
            (told >= v1::INLINE_THRESHOLD).then_some(told)
        };
        let (send_size, receive_size) = (told(send_size)?, told(receive_size)?);
        Some(PrivateData { invalidate, send_size, receive_size })
    }

    /// Octets of the longest Send that it makes.
    pub fn send_size(&self) -> u32 {
        self.send_size
    }

    /// Octets of its Receive buffers.
    pub fn receive_size(&self) -> u32 {
        self.receive_size
    }

    /// Looks for the message in private data of any content. The first that is there counts; of
    /// reserved bits nothing is read. `None` when there is none of this version, or not all of it.
    pub fn find(private_data: &[u8]) -> Option<PrivateData> {
        let mut all = private_data.windows(LEN);
        let message = all.find(|w| w.starts_with(&FORMAT.to_be_bytes()))?;
        let mut r = Reader::new(message.get(4..)?);
        let [version, flags, send, receive] = r.u32().ok()?.to_be_bytes();
        let size = |encoded: u8| (u32::from(encoded) + 1) * STEP;
        (version == VERSION).then(|| PrivateData {
            invalidate: flags & 1 == 1,
            send_size: size(send),
            receive_size: size(receive),
        })
    }

    /// The message.
    pub fn emit(&self) -> [u8; LEN] {
        let encoded = |size: u32| {
            // Of 1024 to 262144 octets, 0 to 255.
            u8::try_from((size / STEP).saturating_sub(1)).unwrap_or(u8::MAX)
        };
        let (send, receive) = (encoded(self.send_size), encoded(self.receive_size));
        let mut out = [0; LEN];
        let mut w = Writer::new(&mut out);
        w.u32(FORMAT);
        w.raw(&[VERSION, self.invalidate.into(), send, receive]);
        out
    }
}

impl Default for PrivateData {
    fn default() -> PrivateData {
        PrivateData::DEFAULT
    }
}

/// What a connection may do, of what its two ends have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Octets of the longest Send that this end makes.
    pub send: u32,
    /// Octets of the longest Send that it receives: its Receive buffers have as many.
    pub receive: u32,
    /// Whether this end, as responder, may invalidate an STag of the call by its reply (section 4.1). As
    /// requester it takes that whenever it has said so itself: see
    /// [`PrivateData::invalidate`].
    pub invalidate: bool,
}

impl Terms {
    /// Of what this end has said and what was found of its peer's.
    ///
    /// The RFC gives each end the threshold of what it sends (section 4.2). What it receives is the
    /// same reckoned by its peer, if the peer has seen our message; one that has not sends no more
    /// than 1024 octets, which is less.
    pub fn of(ours: &PrivateData, peers: Option<PrivateData>) -> Terms {
        let peers = peers.unwrap_or_default();
        Terms {
            send: ours.send_size.min(peers.receive_size),
            receive: ours.receive_size.min(peers.send_size),
            invalidate: ours.invalidate && peers.invalidate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_message_octets() {
        let message = PrivateData::new(true, 4096, 262_144).unwrap();
        assert_eq!(message.emit(), [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 255]);
        assert_eq!(PrivateData::DEFAULT.emit(), [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 0]);
    }

    #[test]
    fn test_sizes_are_told_as_less_and_not_as_more() {
        let told = |size| PrivateData::new(false, size, size).map(|p| p.receive_size());
        assert_eq!(told(1023), None);
        assert_eq!((told(1024), told(2047)), (Some(1024), Some(1024)));
        assert_eq!((told(262_144), told(u32::MAX)), (Some(262_144), Some(262_144)));
        assert_eq!(PrivateData::new(false, 0, 4096), None);
    }

    #[test]
    fn test_message_is_found_at_any_offset() {
        let message = PrivateData::new(true, 2048, 8192).unwrap();
        for offset in 0..9 {
            let mut data = vec![0xf6; offset];
            data.extend(message.emit());
            data.extend([1, 2, 3]);
            assert_eq!(PrivateData::find(&data), Some(message));
            assert_eq!(PrivateData::find(&data[..offset + 7]), None, "not all of it");
        }
    }

    #[test]
    fn test_reserved_bits_are_not_looked_at() {
        let octets = [0xf6, 0xab, 0x0e, 0x18, 1, 0xff, 0, 1];
        assert_eq!(PrivateData::find(&octets), PrivateData::new(true, 1024, 2048));
        let octets = [0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 0, 1];
        assert_eq!(PrivateData::find(&octets), PrivateData::new(false, 1024, 2048));
    }

    #[test]
    fn test_other_version_or_format_is_as_nothing() {
        for octets in [[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3], [0xf6, 0xab, 0x0e, 0x19, 1, 1, 3, 3]] {
            assert_eq!(PrivateData::find(&octets), None);
        }
        let ours = PrivateData::new(true, 4096, 4096).unwrap();
        assert_eq!(Terms::of(&ours, None), Terms { send: 1024, receive: 1024, invalidate: false });
    }

    #[test]
    fn test_terms_are_the_same_seen_from_either_end() {
        let client = PrivateData::new(true, 4096, 65536).unwrap();
        let server = PrivateData::new(true, 16384, 8192).unwrap();
        let terms = Terms::of(&client, Some(server));
        assert_eq!(terms, Terms { send: 4096, receive: 16384, invalidate: true });
        let turned = Terms::of(&server, Some(client));
        assert_eq!((turned.send, turned.receive), (terms.receive, terms.send));
        let never = PrivateData { invalidate: false, ..server };
        assert!(!Terms::of(&client, Some(never)).invalidate);
        assert!(!Terms::of(&never, Some(client)).invalidate);
    }

    proptest! {
        #[test]
        fn prop_what_is_emitted_is_found(invalidate: bool, send: u32, receive: u32) {
            if let Some(message) = PrivateData::new(invalidate, send, receive) {
                prop_assert_eq!(PrivateData::find(&message.emit()), Some(message));
                prop_assert!(message.send_size() <= send && message.receive_size() <= receive);
            }
        }

        #[test]
        fn prop_any_octets_are_private_data(data in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(found) = PrivateData::find(&data) {
                prop_assert!(data.windows(4).any(|w| w == &found.emit()[..4]));
            }
        }
    }
}
