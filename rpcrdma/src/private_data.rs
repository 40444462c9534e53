//! The message that an end of version 1 puts into the private data of connection setup (RFC 8797):
//! how long Sends may be, and whether replies may invalidate.
//!
//! ```text
//!    0  0xf6ab0e18 │ version 1 │ reserved 7, R 1 │ send size 8 │ receive size 8
//! ```
//!
//! Other layers use the private data too, so this end searches for the message at any offset
//! (section 5.2). A missing message, or a message of another version, counts as
//! [`PrivateData::DEFAULT`], which states only what is true of every implementation (section 5.1).

use crate::v1;
use crate::xdr::{Reader, Writer};

/// The format identifier with which the message begins.
pub const FORMAT: u32 = 0xf6ab_0e18;

/// Version of the message's format.
pub const VERSION: u8 = 1;

/// Length of the message in bytes.
pub const LEN: usize = 8;

/// The unit of sizes in bytes: each size is a multiple.
const STEP: u32 = 1024;

/// The longest inline threshold that the message can express, in bytes.
pub const SIZE_MAX: u32 = 256 * STEP;

/// The message about one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// True if the end accepts Send with Invalidate in replies, and may send it: the R field.
    pub invalidate: bool,
    /// Length in bytes of the longest Send that the end makes: a multiple of 1024, at most
    /// [`SIZE_MAX`].
    send_size: u32,
    /// Length of the end's Receive buffers in bytes: a multiple of 1024, at most [`SIZE_MAX`].
    receive_size: u32,
}

impl PrivateData {
    /// The values of an end that sends no message.
    pub const DEFAULT: PrivateData = PrivateData {
        invalidate: false,
        send_size: v1::INLINE_THRESHOLD,
        receive_size: v1::INLINE_THRESHOLD,
    };

    /// Creates the message of an end with buffers of these lengths in bytes. A size that the
    /// message cannot express exactly is rounded down. Returns `None` when a size is below 1024
    /// bytes, which every implementation must have.
    pub fn new(invalidate: bool, send_size: u32, receive_size: u32) -> Option<PrivateData> {
        let told = |size: u32| {
            let told = size.min(SIZE_MAX) / STEP * STEP;
            (told >= v1::INLINE_THRESHOLD).then_some(told)
        };
        let (send_size, receive_size) = (told(send_size)?, told(receive_size)?);
        Some(PrivateData { invalidate, send_size, receive_size })
    }

    /// Returns the length in bytes of the longest Send that the end makes.
    pub fn send_size(&self) -> u32 {
        self.send_size
    }

    /// Returns the length of the end's Receive buffers in bytes.
    pub fn receive_size(&self) -> u32 {
        self.receive_size
    }

    /// Searches for the message in private data of any content. The first match counts, and
    /// reserved bits are ignored. Returns `None` when there is no complete message of this version.
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

    /// Encodes the message.
    pub fn emit(&self) -> [u8; LEN] {
        let encoded = |size: u32| {
            // Sizes of 1024 to 262144 bytes are encoded as 0 to 255.
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

/// The terms of a connection, derived from the messages of its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Length in bytes of the longest Send that this end makes.
    pub send: u32,
    /// Length in bytes of the longest Send that this end receives, and of its Receive buffers.
    pub receive: u32,
    /// True if this end, as responder, may invalidate an STag of the call by its reply (section
    /// 4.1). As requester, this end accepts an invalidation whenever its own message announced
    /// support: see [`PrivateData::invalidate`].
    pub invalidate: bool,
}

impl Terms {
    /// Derives the terms from the message of this end and the message found from its peer.
    ///
    /// The RFC defines the threshold for the Sends that an end makes (section 4.2). The peer
    /// computes its own threshold in the same way, so this end knows what it receives, provided
    /// that the peer has seen the message of this end. A peer that has not sends no more than 1024
    /// bytes, which is less.
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
    fn test_private_data_encodes_as_in_rfc_8797() {
        let message = PrivateData::new(true, 4096, 262_144).unwrap();
        assert_eq!(message.emit(), [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 255]);
        assert_eq!(PrivateData::DEFAULT.emit(), [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 0]);
    }

    #[test]
    fn test_sizes_in_private_data_are_rounded_down() {
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
        let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 0xff, 0, 1];
        assert_eq!(PrivateData::find(&bytes), PrivateData::new(true, 1024, 2048));
        let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 0, 1];
        assert_eq!(PrivateData::find(&bytes), PrivateData::new(false, 1024, 2048));
    }

    #[test]
    fn test_private_data_of_other_version_or_format_is_ignored() {
        for bytes in [[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3], [0xf6, 0xab, 0x0e, 0x19, 1, 1, 3, 3]] {
            assert_eq!(PrivateData::find(&bytes), None);
        }
        let ours = PrivateData::new(true, 4096, 4096).unwrap();
        assert_eq!(Terms::of(&ours, None), Terms { send: 1024, receive: 1024, invalidate: false });
    }

    #[test]
    fn test_both_ends_derive_matching_terms() {
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
        fn prop_any_bytes_are_private_data(data in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(found) = PrivateData::find(&data) {
                prop_assert!(data.windows(4).any(|w| w == &found.emit()[..4]));
            }
        }
    }
}
